"""`volplane snapshot-controller`: the snapshot controller, with upstream's flags."""

from volplane.cli.sidecar import verb
from volplane.controllers.snapshot import role

command = verb(
    "snapshot-controller",
    role.SnapshotControllerOptions,
    role.run,
    "Bind and delete snapshots and their contents until stopped.",
    calls_driver=False,
)
