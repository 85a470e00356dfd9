"""What a check of a data directory reads, finds and repairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from volplane.cloud.model import CloudSnapshot, CloudVolume

# --- read


class StoreSurvey(Struct, frozen=True):
    """A database."""

    name: str
    damage: str = ""
    records: int = 0
    unreadable: Mapping[str, str] = {}  # key → why
    unknown: Mapping[str, int] = {}  # resource that this version does not know → number of objects


class StoredVolume(Struct, frozen=True):
    """A PersistentVolume of a CSI driver."""

    name: str
    driver: str
    handle: str
    claim: str = ""


class StoredAttachment(Struct, frozen=True):
    """A VolumeAttachment that is attached."""

    name: str
    handle: str  # of its volume
    node: str
    instance: str  # of the node


class ImageSurvey(Struct, frozen=True):
    size: int
    is_blank: bool


class CertificateSurvey(Struct, frozen=True):
    file: str
    days: int  # until it expires
    problem: str = ""


class MountSurvey(Struct, frozen=True):
    target: str
    pod: str = ""  # UID, if it is a mount of a pod


class DirectorySurvey(Struct, frozen=True):
    """Everything that must agree."""

    running: bool = False
    stores: Sequence[StoreSurvey] = ()
    volumes: Sequence[StoredVolume] = ()
    attachments: Sequence[StoredAttachment] = ()
    pods: frozenset[str] = frozenset()  # UIDs
    disks: Mapping[str, CloudVolume] = {}
    snapshots: Mapping[str, CloudSnapshot] = {}
    unreadable_records: frozenset[str] = frozenset()  # ids of disks and snapshots
    images: Mapping[str, ImageSurvey] = {}
    snapshot_images: Mapping[str, ImageSurvey] = {}
    orphaned: Sequence[str] = ()  # files that were set aside
    loops: Mapping[str, str] = {}  # loop device → file
    mounts: Sequence[MountSurvey] = ()  # innermost first
    containers: Mapping[str, str] = {}  # directory → description of a container that runs
    access_points: frozenset[str] = frozenset()  # handles
    lost_directories: Sequence[str] = ()  # handles of access points whose directory is missing
    unreadable_points: Sequence[str] = ()
    certificates: Sequence[CertificateSurvey] = ()
    temporary: Sequence[str] = ()  # files of writers that were killed
    has_bridge: bool = False


# --- found


class Severity(StrEnum):
    ERROR = "error"  # data is missing or damaged
    WARNING = "warning"  # something is left over, or does not agree


class RemoveFile(Struct, frozen=True, tag=True):
    """Remove a file without content of its own."""

    path: str

    def __str__(self) -> str:
        return f"remove {self.path}"


class SetAside(Struct, frozen=True, tag=True):
    """Rename a disk's file, whose record may be lost."""

    path: str

    def __str__(self) -> str:
        return f"rename {self.path} to *.orphaned"


class EndContainers(Struct, frozen=True, tag=True):
    """Kill the containers of a node."""

    directory: str

    def __str__(self) -> str:
        return f"end the containers in {self.directory}"


class RemoveMount(Struct, frozen=True, tag=True):
    target: str

    def __str__(self) -> str:
        return f"unmount {self.target}"


class DetachLoop(Struct, frozen=True, tag=True):
    device: str
    file: str

    def __str__(self) -> str:
        return f"detach {self.device}"


class RemoveBridge(Struct, frozen=True, tag=True):
    """Remove the network of the pods."""

    def __str__(self) -> str:
        return "remove the network of the pods"


Repair: TypeAlias = RemoveFile | SetAside | EndContainers | RemoveMount | DetachLoop | RemoveBridge


class CheckFinding(Struct, frozen=True):
    severity: Severity
    about: str  # what it is about, such as disk/vol-1
    message: str  # what is wrong, and what to do
    repair: Repair | None = None
