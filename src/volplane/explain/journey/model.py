"""A journey as plain data: lanes, steps, outcome, times, and the changes of state.

The text of `volplane journey`, the diagram and the live page are made from this alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct


class Lane(StrEnum):
    """The participants of the sequence diagram, from left to right."""

    USER = "kubectl"
    APISERVER = "API server"
    STORE = "store"
    CONTROLLERS = "controllers"  # all that have no lane of their own
    BINDER = "binder"
    SCHEDULER = "scheduler"
    PROVISIONER = "provisioner"
    RESIZER = "resizer"
    SNAPSHOTTER = "snapshotter"
    DRIVER_CONTROLLER = "driver controller"
    CLOUD = "cloud"
    ATTACH_DETACH = "attach/detach"
    ATTACHER = "attacher"
    KUBELET = "kubelet"
    DRIVER_NODE = "driver node"
    CONTAINER = "container"


class Phase(StrEnum):
    """What a step is a part of, in the order of a volume's life."""

    PROVISION = "provision"
    BIND = "bind"
    SCHEDULE = "schedule"
    ATTACH = "attach"
    STAGE = "stage"
    PUBLISH = "publish"
    START = "start"
    EXPAND = "expand"
    SNAPSHOT = "snapshot"
    STOP = "stop"
    UNPUBLISH = "unpublish"
    UNSTAGE = "unstage"
    DETACH = "detach"
    DELETE = "delete"
    OTHER = "other"

    @property
    def is_back(self) -> bool:
        return self in _BACK


_BACK = frozenset({Phase.STOP, Phase.UNPUBLISH, Phase.UNSTAGE, Phase.DETACH, Phase.DELETE})


class StepOutcome(StrEnum):
    OK = "ok"
    FAILED = "failed"
    IN_PROGRESS = "in progress"
    CUT_OFF = "cut off"  # the process ended before the step did; whether it took effect is not known


class StepSource(StrEnum):
    """How a step is known."""

    SPAN = "span"  # recorded by the component that took it
    EVENT = "event"
    CONDITION = "condition"
    FIELD = "field"  # a timestamp in the object
    MANAGED_FIELDS = "managedFields"


class StateChange(Struct, frozen=True):
    field: str  # `status.phase`, `metadata.finalizers[kubernetes.io/pvc-protection]`
    before: str  # "": not set
    after: str


class JourneyStep(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One arrow of the diagram."""

    at: datetime
    seconds: float | None = 0.0  # None: not known, or still in progress
    lane: Lane  # who takes the step
    to: Lane  # who is asked; the same lane for work of its own
    component: str  # as in events and logs: csi-attacher, kubelet
    what: str  # CreateVolume, bind, mkfs
    subject: str  # pvc/default/data
    phase: Phase
    outcome: StepOutcome = StepOutcome.OK
    error: str = ""
    node: str = ""
    attempt: int = 1  # counts how often the same was tried
    id: str = ""
    parent: str = ""  # the id of the step that this one is a part of
    depth: int = 0  # number of steps around it
    source: StepSource = StepSource.SPAN
    details: Mapping[str, str] = {}  # request, reply, user: secrets are stripped
    changes: tuple[StateChange, ...] = ()

    @property
    def end(self) -> datetime:
        return self.at + timedelta(seconds=self.seconds or 0.0)


class CallMeasurement(Struct, frozen=True):
    """How long calls of one method took: of all volumes of the driver, since the node's kubelet started."""

    node: str
    method: str  # NodeStageVolume
    count: int
    seconds: float  # on average
    failed: int = 0


class VolumeUsage(Struct, frozen=True):
    """How full the volume is, as the kubelet that has mounted it says."""

    node: str
    capacity: int  # bytes
    used: int


class JourneyOutcome(StrEnum):
    PENDING = "not provisioned yet"
    PROVISIONED = "provisioned, not in use"
    MOVING = "on its way to a pod"
    IN_USE = "in use by a running pod"
    RELEASED = "released by its pods"
    DELETED = "deleted"


class Journey(Struct, frozen=True, omit_defaults=True):
    """Everything that is known to have happened for one claim (or for one pod without claims)."""

    subject: str  # pvc/default/data
    uid: str
    trace: str  # id of the trace, for a tracing system
    outcome: JourneyOutcome
    began: datetime | None = None
    ended: datetime | None = None  # the end of the last step
    volumes: tuple[str, ...] = ()  # names of PersistentVolumes
    attachments: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()  # namespace/name, in order
    disks: tuple[str, ...] = ()  # volume handles
    nodes: tuple[str, ...] = ()  # in the order in which the volume was attached to them
    steps: tuple[JourneyStep, ...] = ()  # in the order of their start
    unknown: tuple[str, ...] = ()  # what could not be found out, and why
    calls: tuple[CallMeasurement, ...] = ()  # what metrics tell, if steps were not recorded
    usage: tuple[VolumeUsage, ...] = ()

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes that take part, from left to right."""
        used = {step.lane for step in self.steps} | {step.to for step in self.steps}
        return tuple(lane for lane in Lane if lane in used)


class Transition(Struct, frozen=True, omit_defaults=True):
    """A change of state: an event led from `before` to `after`."""

    at: datetime
    subject: str
    field: str
    before: str
    event: str  # who caused it, by which step
    after: str
    source: StepSource = StepSource.SPAN


class StateHistory(Struct, frozen=True, omit_defaults=True):
    subject: str
    transitions: tuple[Transition, ...] = ()
    unknown: tuple[str, ...] = ()
