"""What a directory server knows, in SQLite."""
