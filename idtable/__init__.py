"""What a member knows, in SQLite: IDTable, inbound and outbound log, version vector, sessions."""
