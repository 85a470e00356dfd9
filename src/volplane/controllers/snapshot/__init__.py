"""snapshot-controller: VolumeSnapshots get their contents, follow them, and take them along when they go."""
