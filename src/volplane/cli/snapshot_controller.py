"""`volplane snapshot-controller`: the snapshot controller by itself, with upstream's flags."""

from volplane.cli.sidecar import verb
from volplane.controllers.snapshot import role

command = verb(
    "snapshot-controller",
    role.SnapshotControllerOptions,
    role.run,
    "Look after snapshots until stopped.",
    calls_driver=False,
)
