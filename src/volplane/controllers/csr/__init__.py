"""Certificate signing requests of nodes: approve those for their own identity, and sign."""
