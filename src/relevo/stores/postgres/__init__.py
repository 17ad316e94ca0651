"""Jobs in PostgreSQL: live ones in a small hot table, ended ones beside it, verbs as functions."""
