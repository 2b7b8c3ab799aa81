"""Measures this product beside rsync, Unison and Syncthing; ``python -m bench --help``."""
