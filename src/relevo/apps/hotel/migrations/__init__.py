"""The revisions of the hotel's tables."""
