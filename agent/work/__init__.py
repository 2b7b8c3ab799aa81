"""Tasks, threads and the time of day."""
