"""Move the objects of a cluster to another one: over the API, between any two API servers."""
