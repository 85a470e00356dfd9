"""A namespace that is deleted takes everything in it along, and goes when it is empty."""
