"""Certificate signing requests of nodes: approved when they ask for themselves, and signed."""
