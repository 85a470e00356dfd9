"""A driver brought by its author: a command, or a small file that says more about it.

`read` and `from_command` say what to run, `probe` starts it once and asks what it can do, `manifests` puts
our sidecars around it as its answers call for. What is given in the file counts more than what is derived.
"""

from volplane.cluster.guest.command import BadCommand, parsed
from volplane.cluster.guest.deploy import expected, manifests
from volplane.cluster.guest.deployed import from_manifests
from volplane.cluster.guest.model import BadGuest, Command, Facts, Guest, Shape, shape
from volplane.cluster.guest.probing import probe
from volplane.cluster.guest.reading import command_of, from_command, read

__all__ = [
    "BadCommand",
    "BadGuest",
    "Command",
    "Facts",
    "Guest",
    "Shape",
    "command_of",
    "expected",
    "from_command",
    "from_manifests",
    "manifests",
    "parsed",
    "probe",
    "read",
    "shape",
]
