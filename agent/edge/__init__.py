"""Taking connections at the edge of the network: bounded, fair between addresses, and cheap for whoever is refused."""
