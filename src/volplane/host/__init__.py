"""Access to the operating system: mounts, devices, file systems, processes, and a node's paths.

No other package mounts, forks or blocks. All calls are methods of `Host`; only `NodePaths` knows where a
node's `/var/lib/kubelet` is on this machine.
"""

from volplane.host.device_directory import DeviceDirectory
from volplane.host.devices import DeviceBusy
from volplane.host.files import FilesystemStats, PathEscapesVolume
from volplane.host.filesystems import UNKNOWN, Filesystem, FilesystemNeedsRepair, UnreadableDevice
from volplane.host.host import Host
from volplane.host.mounts import MountEntry, MountTable
from volplane.host.paths import DEVICES, NodePaths
from volplane.host.processes import CompletedCommand, HostCommandFailed, HostCommandMissing, Process

__all__ = [
    "DEVICES",
    "UNKNOWN",
    "CompletedCommand",
    "DeviceBusy",
    "DeviceDirectory",
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
