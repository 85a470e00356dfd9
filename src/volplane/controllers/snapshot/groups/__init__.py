"""Group snapshots: of all claims that a selector matches, taken at one moment, all or none."""
