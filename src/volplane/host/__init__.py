"""The one door to the operating system: mounts, devices, file systems, processes, and a node's paths.

No other room mounts, forks or blocks. Everything is a method of `Host`; `NodePaths` alone knows where a
node's `/var/lib/kubelet` really is.
"""

from volplane.host.devices import DeviceBusy
from volplane.host.files import FilesystemStats, PathEscapesVolume
from volplane.host.filesystems import UNKNOWN, Filesystem, FilesystemNeedsRepair, UnreadableDevice
from volplane.host.host import Host
from volplane.host.mounts import MountEntry, MountTable
from volplane.host.paths import NodePaths
from volplane.host.processes import CompletedCommand, HostCommandFailed, HostCommandMissing, Process

__all__ = [
    "UNKNOWN",
    "CompletedCommand",
    "DeviceBusy",
    "Filesystem",
    "FilesystemNeedsRepair",
    "FilesystemStats",
    "Host",
    "HostCommandFailed",
    "HostCommandMissing",
    "MountEntry",
    "MountTable",
    "NodePaths",
    "PathEscapesVolume",
    "Process",
    "UnreadableDevice",
]
