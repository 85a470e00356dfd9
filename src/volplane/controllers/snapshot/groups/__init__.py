"""Groups of snapshots: of all claims that a selector finds, taken at one moment, and only as a whole."""
