"""The steps of a life: volumes, nodes and targets have numbers, so it can be replayed on fresh volumes."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Fault(StrEnum):
    """What happens to a call."""

    NONE = ""
    LOST_REPLY = "lost reply"  # the driver's answer is discarded
    DEADLINE = "deadline"  # the caller's deadline is `delay` ms
    CUT = "cut"  # the connection is closed `delay` ms after the call
    KILL_DURING = "kill during"  # the driver is killed `delay` ms after the call, and restarted
    KILL_AFTER = "kill after"  # the driver is killed after its answer, and restarted


class Mistake(StrEnum):
    """What is wrong with a call's arguments."""

    NONE = ""
    UNKNOWN_VOLUME = "unknown volume"
    UNKNOWN_NODE = "unknown node"
    NO_VOLUME = "no volume"  # the id, or the name of CreateVolume, is missing
    NO_CAPABILITY = "no capability"
    OTHER_SIZE = "other size"  # of a name that is used
    OTHER_SOURCE = "other source"  # of a snapshot's name that is used


class VolumeKind(StrEnum):
    MOUNT = "mount"  # SINGLE_NODE_WRITER, a file system
    BLOCK = "block"  # SINGLE_NODE_WRITER, a raw device
    SHARED = "shared"  # MULTI_NODE_MULTI_WRITER, a file system


class Source(StrEnum):
    NONE = ""
    SNAPSHOT = "snapshot"
    VOLUME = "volume"


WRITE = "Write"  # a step of the caller: write data to a target and sync
QUERIES = (
    "ListVolumes",
    "ListSnapshots",
    "ControllerGetVolume",
    "ValidateVolumeCapabilities",
    "NodeGetVolumeStats",
    "GetCapacity",
    "Probe",
    "NodeGetInfo",
)
CONTROLLER_CALLS = frozenset(
    {
        "CreateVolume",
        "DeleteVolume",
        "ControllerPublishVolume",
        "ControllerUnpublishVolume",
        "ControllerExpandVolume",
        "CreateSnapshot",
        "DeleteSnapshot",
        "ListVolumes",
        "ListSnapshots",
        "ControllerGetVolume",
        "ValidateVolumeCapabilities",
        "GetCapacity",
        "Probe",
    }
)
_ATTACH = ("ControllerPublishVolume", "ControllerUnpublishVolume")
# What each call needs, as `DriverCapabilities.has` names it.
NEEDS: dict[str, tuple[str, ...]] = {
    "CreateVolume": ("create",),
    "DeleteVolume": ("create",),
    "ControllerPublishVolume": ("attach",),
    "ControllerUnpublishVolume": ("attach",),
    "NodeStageVolume": ("stage",),
    "NodeUnstageVolume": ("stage",),
    "NodePublishVolume": (),
    "NodeUnpublishVolume": (),
    "ControllerExpandVolume": ("expand-controller",),
    "NodeExpandVolume": ("expand-node",),
    "CreateSnapshot": ("snapshot",),
    "DeleteSnapshot": ("snapshot",),
    "ListVolumes": ("list",),
    "ListSnapshots": ("list-snapshots",),
    "ControllerGetVolume": ("get",),
    "ValidateVolumeCapabilities": ("create",),
    "NodeGetVolumeStats": ("stats",),
    "GetCapacity": ("capacity",),
    "Probe": (),
    "NodeGetInfo": (),
    WRITE: (),
}


class Step(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One call, or a write. Fields that the call does not have are 0."""

    call: str
    volume: int = 0
    node: int = 0
    target: int = 0
    snapshot: int = 0
    size: int = 0  # in units of the first size; 0: the first size
    source: Source = Source.NONE
    origin: int = 0  # the volume from which a clone is made
    mistake: Mistake = Mistake.NONE
    fault: Fault = Fault.NONE
    delay: float = 0.0  # of the fault, in ms

    def __str__(self) -> str:
        words = [self.call]
        if self.call == "DeleteSnapshot":
            words.append(f"snapshot {self.snapshot}")
        elif self.call not in ("ListVolumes", "ListSnapshots", "GetCapacity", "Probe", "NodeGetInfo"):
            words.append(f"volume {self.volume}")
        if self.call == "CreateSnapshot":
            words.append(f"as snapshot {self.snapshot}")
        if self.source is Source.SNAPSHOT:
            words.append(f"from snapshot {self.snapshot}")
        if self.source is Source.VOLUME:
            words.append(f"from volume {self.origin}")
        if self.size and self.call in ("CreateVolume", "ControllerExpandVolume", "NodeExpandVolume"):
            words.append(f"size {self.size}")
        if self.call not in CONTROLLER_CALLS or self.call in _ATTACH:
            words.append(f"node {self.node}")
        if self.call in ("NodePublishVolume", "NodeUnpublishVolume", "NodeGetVolumeStats", WRITE):
            words.append(f"target {self.target}")
        if self.mistake:
            words.append(f"[wrong: {self.mistake}]")
        if self.fault:
            timed = f" {self.delay:g} ms" if self.delay else ""
            words.append(f"[{self.fault}{timed}]")
        return " ".join(words)


Moment = tuple[Step, ...]  # steps that start together


class Life(Struct, frozen=True, forbid_unknown_fields=True):
    """Volumes by their kind, and what happens to them."""

    volumes: tuple[VolumeKind, ...]
    moments: tuple[Moment, ...]

    def steps(self) -> list[Step]:
        return [step for moment in self.moments for step in moment]
