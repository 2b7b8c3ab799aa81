"""DCE/RPC over TCP: PDUs, security providers, a server, a client, and the frsrpc interface ([MS-FRS1] section 2.1)."""
