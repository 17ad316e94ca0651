"""The revisions of our QStash's tables."""
