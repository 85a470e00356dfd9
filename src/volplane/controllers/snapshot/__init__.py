"""snapshot-controller: create the contents of VolumeSnapshots, copy their status, delete them together."""
