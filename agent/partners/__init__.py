"""Delivery to partners, and what is said of one that cannot be reached."""
