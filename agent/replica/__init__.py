"""One replica set on this host: drives its engine, and tells of it."""
