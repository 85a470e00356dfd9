"""`volplane snapshotter`: the snapshotter sidecar of a driver, with external-snapshotter's flags."""

from volplane.cli.sidecar import verb
from volplane.sidecars.snapshotter import service as snapshotter

command = verb(
    "csi-snapshotter",
    snapshotter.SnapshotterOptions,
    snapshotter.run,
    "Create and delete snapshots until stopped.",
)
