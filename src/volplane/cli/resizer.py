"""`volplane resizer`: the resizer beside a driver, with external-resizer's flags."""

from volplane.cli.sidecar import verb
from volplane.sidecars import resizer

command = verb("csi-resizer", resizer.ResizerOptions, resizer.run, "Grow and modify volumes until stopped.")
