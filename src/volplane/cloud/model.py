"""The records of the disk service: volumes, snapshots, instances, modifications."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field, structs

from volplane.rules.instances import OWNER as OWNER

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
    card: int | None = None  # index of the instance's EBS card, if the request named one


class VolumeShape(Struct, frozen=True, omit_defaults=True):
    """The properties of a volume that can be modified."""

    size: int  # GiB
    type: str = "gp2"
    iops: int = 0
    throughput: int = 0
    multi_attach: bool = False


class CloudVolume(Struct, frozen=True, omit_defaults=True):
    id: str
    zone: str
    shape: VolumeShape
    state: VolumeState
    created: str = ""
    encrypted: bool = False
    token: str = ""  # the client token of its request
    fingerprint: str = ""  # of the request with this token
    tags: dict[str, str] = {}
    attachments: tuple[CloudAttachment, ...] = ()  # several only with Multi-Attach
    used: bool = False  # its file may have data: it was attached, or is a copy
    snapshot: str = ""  # that it was created from
    fast_restored: bool = False
    source: str = ""  # the volume that it was copied from
    id_returned: bool = field(default=False, name="told")  # the client got its id before it was ready
    lost: bool = False  # in error because its file is missing or too short; cleared when the file is back
    kms_key: str = ""
    initialization_rate: int = 0  # MiB/s that the request asked for

    def find_attachment(self, instance: str) -> CloudAttachment | None:
        return next((a for a in self.attachments if a.instance == instance), None)

    def with_attachment(self, attachment: CloudAttachment) -> CloudVolume:
        """The volume with this attachment, in place of an earlier one to the same instance."""
        others = self._attachments_elsewhere(attachment.instance)
        state = VolumeState.ERROR if self.lost else VolumeState.IN_USE
        return structs.replace(self, state=state, attachments=(*others, attachment))

    def without_attachment(self, instance: str) -> CloudVolume:
        left = self._attachments_elsewhere(instance)
        free = VolumeState.ERROR if self.lost else VolumeState.AVAILABLE
        return structs.replace(self, state=self.state if left else free, attachments=left)

    def is_attached_elsewhere(self, instance: str) -> bool:
        return bool(self._attachments_elsewhere(instance))

    def _attachments_elsewhere(self, instance: str) -> tuple[CloudAttachment, ...]:
        return tuple(a for a in self.attachments if a.instance != instance)


class LockMode(StrEnum):
    COMPLIANCE = "compliance"
    GOVERNANCE = "governance"


class SnapshotLock(Struct, frozen=True, omit_defaults=True):
    mode: LockMode
    created: str
    days: int  # that it lasts
    expires: str = ""  # if the request had a date
    cool_off: int = 0  # hours


class CloudSnapshot(Struct, frozen=True, omit_defaults=True):
    id: str
    volume: str
    size: int  # GiB
    state: SnapshotState
    started: str
    ended: str = ""
    description: str = ""
    encrypted: bool = False
    stored: int = 0  # bytes on disk
    tags: dict[str, str] = {}
    why: str = ""  # reason of an error
    id_returned: bool = field(default=False, name="told")  # the client got its id before it was ready
    deleting: bool = False
    source: str = ""  # the snapshot that it was copied from
    kms_key: str = ""
    duration: int = 0  # minutes that the request for the copy allows
    lock: SnapshotLock | None = None
    fast_restores: dict[str, str] = {}  # zone → since when they are enabled
    set: str = ""  # id of a multi-volume snapshot, which exists as a whole or not at all


class CloudModification(Struct, frozen=True, omit_defaults=True):
    volume: str
    original: VolumeShape
    target: VolumeShape
    started: str
    ended: str = ""
    failed: str = ""  # reason

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
    type: str = "m5.large"
    tags: dict[str, str] = {}
