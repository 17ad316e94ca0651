"""What the outside would send: one file per system drives its doors and says what must come of it."""
