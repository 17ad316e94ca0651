"""The revisions of expenses' tables."""
