"""The revisions of the car rental's tables; `versions/` holds one file each."""
