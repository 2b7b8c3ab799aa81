"""From the journal to local changes: when and where to look, and what counts as deleted."""
