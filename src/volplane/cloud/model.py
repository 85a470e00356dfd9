"""What the disk service remembers: volumes, snapshots, instances, modifications."""

from enum import StrEnum

from msgspec import Struct

GIB = 1 << 30


class VolumeState(StrEnum):
    CREATING = "creating"
    AVAILABLE = "available"
    IN_USE = "in-use"
    DELETING = "deleting"
    ERROR = "error"


class SnapshotState(StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    ERROR = "error"


class AttachmentState(StrEnum):
    ATTACHING = "attaching"
    ATTACHED = "attached"
    DETACHING = "detaching"
    DETACHED = "detached"


class CloudAttachment(Struct, frozen=True, omit_defaults=True):
    instance: str
    device: str  # "/dev/xvdba", as the instance sees it
    state: AttachmentState
    since: str = ""


class VolumeShape(Struct, frozen=True, omit_defaults=True):
    """What a volume is made of, and what can be modified."""

    size: int  # GiB
    type: str = "gp2"
    iops: int = 0
    throughput: int = 0


class CloudVolume(Struct, frozen=True, omit_defaults=True):
    id: str
    zone: str
    shape: VolumeShape
    state: VolumeState
    created: str = ""
    encrypted: bool = False
    token: str = ""  # the client token it was made with
    fingerprint: str = ""  # of the request that the token belongs to
    tags: dict[str, str] = {}
    attachment: CloudAttachment | None = None
    used: bool = False  # its file may hold data: it was attached once, or is a copy
    snapshot: str = ""  # what it was made from
    source: str = ""  # the volume that it is a copy of
    told: bool = False  # its maker knows its id, though it was not ready
    lost: bool = False  # in error because its file is gone or too short; no more when the file is back


class CloudSnapshot(Struct, frozen=True, omit_defaults=True):
    id: str
    volume: str
    size: int  # GiB
    state: SnapshotState
    started: str
    ended: str = ""
    description: str = ""
    encrypted: bool = False
    stored: int = 0  # bytes that it takes
    tags: dict[str, str] = {}
    why: str = ""  # of an error
    told: bool = False  # its maker knows its id, though it was not ready
    deleting: bool = False
    set: str = ""  # snapshots of one moment, of several volumes: there are all of them, or none


class CloudModification(Struct, frozen=True, omit_defaults=True):
    volume: str
    original: VolumeShape
    target: VolumeShape
    started: str
    ended: str = ""
    failed: str = ""  # why

    @property
    def state(self) -> str:
        if self.failed:
            return "failed"
        return "completed" if self.ended else "modifying"


class CloudInstance(Struct, frozen=True, omit_defaults=True):
    id: str
    zone: str
    directory: str  # its /dev on this machine
    name: str = ""
    running: bool = True
    launched: str = ""
    tags: dict[str, str] = {}
