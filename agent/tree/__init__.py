"""The tree of a replica set: its root, who this member is in it, what of it is replicated, what is believed of it."""
