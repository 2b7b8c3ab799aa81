"""A directory for hosts without a domain: objects, how servers replicate them, how one is found (docs/directory.md)."""
