"""`volplane snapshotter`: the snapshotter beside a driver, with external-snapshotter's flags."""

from volplane.cli.sidecar import verb
from volplane.sidecars import snapshotter

command = verb(
    "csi-snapshotter",
    snapshotter.SnapshotterOptions,
    snapshotter.run,
    "Take and delete snapshots until stopped.",
)
