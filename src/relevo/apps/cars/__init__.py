"""cars."""
