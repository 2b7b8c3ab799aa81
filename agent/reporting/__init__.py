"""What administrators read: the log, and incidents by cause."""
