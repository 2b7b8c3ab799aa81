"""How servers reach each other and hosts read: the topology as objects, the RPC interface, the server, the client."""
