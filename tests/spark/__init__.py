"""`frs summarize` on a Spark of its own, and killed.

cluster       a standalone Spark on this host
following     the stream, in a process of its own, until all is taken in
campaign      the command `python -m tests.spark`: that process, and workers, killed at random points
"""
