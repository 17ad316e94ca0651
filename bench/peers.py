"""Other queues, drained beside us."""
