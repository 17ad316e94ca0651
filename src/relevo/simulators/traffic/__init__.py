"""What the outside sends: one file per system drives its doors and says what must come of it."""
