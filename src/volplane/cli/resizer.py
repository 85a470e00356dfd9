"""`volplane resizer`: the resizer sidecar of a driver, with external-resizer's flags."""

from volplane.cli.sidecar import verb
from volplane.sidecars.resizer import service as resizer

command = verb("csi-resizer", resizer.ResizerOptions, resizer.run, "Expand and modify volumes until stopped.")
