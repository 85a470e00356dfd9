"""Attach/detach: attach volumes to the nodes whose pods use them, and detach them elsewhere."""
