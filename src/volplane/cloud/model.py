"""What the disk service remembers: volumes, instances, modifications."""

from enum import StrEnum

from msgspec import Struct

GIB = 1 << 30


class VolumeState(StrEnum):
    CREATING = "creating"
    AVAILABLE = "available"
    IN_USE = "in-use"
    DELETING = "deleting"
    ERROR = "error"


class AttachmentState(StrEnum):
    ATTACHING = "attaching"
    ATTACHED = "attached"
    DETACHING = "detaching"
    DETACHED = "detached"


class Attachment(Struct, frozen=True, omit_defaults=True):
    instance: str
    device: str  # "/dev/xvdba", as the instance sees it
    state: AttachmentState
    since: str = ""


class Shape(Struct, frozen=True, omit_defaults=True):
    """What a volume is made of, and what can be modified."""

    size: int  # GiB
    type: str = "gp2"
    iops: int = 0
    throughput: int = 0


class Volume(Struct, frozen=True, omit_defaults=True):
    id: str
    zone: str
    shape: Shape
    state: VolumeState
    created: str = ""
    encrypted: bool = False
    token: str = ""  # the client token it was made with
    fingerprint: str = ""  # of the request that the token belongs to
    tags: dict[str, str] = {}
    attachment: Attachment | None = None
    used: bool = False  # was attached once, so that its file may hold data


class Modification(Struct, frozen=True, omit_defaults=True):
    volume: str
    original: Shape
    target: Shape
    started: str
    ended: str


class Instance(Struct, frozen=True, omit_defaults=True):
    id: str
    zone: str
    directory: str  # its /dev on this machine
    name: str = ""
    running: bool = True
    launched: str = ""
    tags: dict[str, str] = {}
