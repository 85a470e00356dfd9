"""`volplane attacher`: the attacher sidecar of a driver, with external-attacher's flags."""

from volplane.cli.sidecar import verb
from volplane.sidecars.attacher import service as attacher

command = verb(
    "csi-attacher", attacher.AttacherOptions, attacher.run, "Attach and detach volumes until stopped."
)
