"""Queues that belong to others: their names and formats, with our promises."""
