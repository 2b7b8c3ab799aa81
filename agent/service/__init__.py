"""One process: wiring, starting and stopping all that runs in it, its control socket and signals."""
