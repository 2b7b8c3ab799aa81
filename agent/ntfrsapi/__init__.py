"""The NtFrsApi interface ([MS-FRS1] 3.2): what administrators ask a member over RPC, and have it do."""
