"""Jobs on Redis or Valkey, 6.2 or newer."""
