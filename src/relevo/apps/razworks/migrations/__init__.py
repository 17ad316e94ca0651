"""The revisions of razworks' tables."""
