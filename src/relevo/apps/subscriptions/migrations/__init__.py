"""The revisions of subscriptions' tables."""
