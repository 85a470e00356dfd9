"""What a caller knows about the volumes of a life: a CSI state machine for each volume and node.

Each fact ("volume 0 is staged on node 1") is known, known to be false, or uncertain: a call without an answer
may have been done or not, and only the same call or its opposite can tell. Pure: answers in, knowledge out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from enum import Enum, StrEnum
from typing import Final

from msgspec import Struct

from volplane.csi.outcome import Code
from volplane.testing.soak.steps import Source, Step, VolumeKind

Fact = tuple[str | int, ...]  # ("volume", 0), ("staged", volume, node), ("published", volume, node, target)
MAX_TARGETS = 2  # targets of a volume on one node


class Known(StrEnum):
    NO = "no"
    YES = "yes"
    MAYBE = "maybe"


class UnknownData(Enum):
    """The data of a volume that was written and copied at the same time: nothing is expected of it."""

    UNKNOWN = "unknown"


UNKNOWN_DATA: Final = UnknownData.UNKNOWN
Data = bytes | None | UnknownData  # None: nothing was written


class Answer(Struct, frozen=True):
    """An answer, as far as the model reads it. Without a code the outcome is unknown."""

    code: Code | None
    message: str = ""
    id: str = ""  # of the volume or snapshot
    capacity: int = 0
    source: str = ""  # id of a snapshot's volume
    context: Mapping[str, str] = {}
    listed: Mapping[str, int] | None = None  # id → capacity; of ListSnapshots id → 0


class CreateArguments(Struct, frozen=True):
    """The arguments of a name: a repeated CreateVolume must have the same."""

    size: int
    source: Source = Source.NONE
    snapshot: int = 0
    origin: int = 0
    source_id: str = ""


class Limits(Struct, frozen=True):
    """What the driver supports."""

    attach: bool = True
    stage: bool = True
    online: bool = True  # expands volumes in use
    nodes: int = 2
    unit: int = 1 << 30  # the first size of a volume
    volumes_per_node: int = 0  # 0: no limit


# The fact that each call changes, and its new value.
EFFECTS: dict[str, tuple[str, bool]] = {
    "CreateVolume": ("volume", True),
    "DeleteVolume": ("volume", False),
    "ControllerPublishVolume": ("attached", True),
    "ControllerUnpublishVolume": ("attached", False),
    "NodeStageVolume": ("staged", True),
    "NodeUnstageVolume": ("staged", False),
    "NodePublishVolume": ("published", True),
    "NodeUnpublishVolume": ("published", False),
    "CreateSnapshot": ("snapshot", True),
    "DeleteSnapshot": ("snapshot", False),
}
# Errors after which nothing was changed; after any other one the call may have been done in part.
REFUSALS = frozenset(
    {
        Code.INVALID_ARGUMENT,
        Code.NOT_FOUND,
        Code.ALREADY_EXISTS,
        Code.OUT_OF_RANGE,
        Code.FAILED_PRECONDITION,
        Code.RESOURCE_EXHAUSTED,
        Code.PERMISSION_DENIED,
    }
)


def effect_of(step: Step) -> tuple[Fact, bool] | None:
    """The fact that a correct call changes, and its value after OK."""
    if step.mistake or step.call not in EFFECTS:
        return None
    name, value = EFFECTS[step.call]
    match name:
        case "volume":
            return (name, step.volume), value
        case "snapshot":
            return (name, step.snapshot), value
        case "published":
            return (name, step.volume, step.node, step.target), value
        case _:
            return (name, step.volume, step.node), value


class Model:
    def __init__(self, kinds: Sequence[VolumeKind], limits: Limits) -> None:
        self.kinds, self.limits = tuple(kinds), limits
        self.facts: dict[Fact, Known] = {}
        self.ids: dict[int, str] = {}  # of volumes; kept after the deletion
        # Volumes that were perhaps deleted, and then perhaps created again, with another id.
        self.outdated_ids: set[int] = set()
        self.arguments: dict[int, CreateArguments] = {}
        self.capacity: dict[int, int] = {}  # at least
        self.largest: dict[int, int] = {}  # at most: an expansion without an answer may have been done
        self.data: dict[int, Data] = {}
        self.contexts: dict[tuple[int, int], Mapping[str, str]] = {}  # by volume and node
        # The arguments of the volume that a copy was made of: a later volume with its name has others.
        self.snapshot_origin: dict[int, CreateArguments | None] = {}
        self.clone_origin: dict[int, CreateArguments | None] = {}
        self.snapshot_ids: dict[int, str] = {}
        self.snapshot_volume: dict[int, int] = {}
        self.snapshot_source: dict[int, str] = {}  # the volume's id
        self.snapshot_data: dict[int, Data] = {}
        self.snapshot_size: dict[int, int] = {}
        # Volume and node after calls in the wrong order, until the volume is taken off the node in order.
        self.disordered: set[tuple[int, int]] = set()
        self.abandoned: set[int] = set()  # deleted while in use: nothing is expected any more

    # --- questions

    def knowledge(self, *fact: str | int) -> Known:
        return self.facts.get(fact, Known.NO)

    def maybe(self, *fact: str | int) -> bool:
        """Whether it is true or uncertain."""
        return self.knowledge(*fact) is not Known.NO

    def has_id(self, volume: int) -> bool:
        return volume in self.ids and volume not in self.outdated_ids

    def published_targets(self, volume: int, node: int) -> list[int]:
        """Targets that are published, perhaps."""
        return [t for t in range(MAX_TARGETS) if self.maybe("published", volume, node, t)]

    def used_on(self, volume: int, node: int) -> bool:
        """Whether the volume is staged or published on the node, perhaps."""
        return self.maybe("staged", volume, node) or bool(self.published_targets(volume, node))

    def present_on(self, volume: int, node: int) -> bool:
        return self.maybe("attached", volume, node) or self.used_on(volume, node)

    def in_use(self, volume: int) -> bool:
        return any(self.present_on(volume, node) for node in range(self.limits.nodes))

    def elsewhere(self, volume: int, node: int) -> list[int]:
        """Other nodes where the volume is."""
        return [n for n in range(self.limits.nodes) if n != node and self.present_on(volume, n)]

    def comes_too_early(self, step: Step) -> bool:
        """Whether it detaches a volume in use on the node, or unstages a published one."""
        if step.call == "ControllerUnpublishVolume":
            return self.used_on(step.volume, step.node)
        return step.call == "NodeUnstageVolume" and bool(self.published_targets(step.volume, step.node))

    def is_shared(self, volume: int) -> bool:
        return self.kinds[volume] is VolumeKind.SHARED

    def dependents(self, volume: int) -> bool:
        """Whether snapshots or clones of the volume exist, perhaps."""
        return any(known is not Known.NO for known in self._copies(volume))

    def may_be_copied(self, volume: int) -> bool:
        """Whether a snapshot or clone whose call has no answer may still be made of the volume."""
        return any(known is Known.MAYBE for known in self._copies(volume))

    def _copies(self, volume: int) -> Iterator[Known]:
        """What is known of each snapshot and clone of the volume, not of an earlier one with its name."""
        mine = self.arguments.get(volume)
        for snapshot, origin in self.snapshot_origin.items():
            if self.snapshot_volume[snapshot] == volume and origin is mine:
                yield self.knowledge("snapshot", snapshot)
        for clone, origin in self.clone_origin.items():
            if self.arguments[clone].origin == volume and origin is mine:
                yield self.knowledge("volume", clone)

    def has_restored_volumes(self, snapshot: int) -> bool:
        """Whether volumes from the snapshot exist, perhaps."""
        return any(
            a.source is Source.SNAPSHOT and a.snapshot == snapshot and self.maybe("volume", v)
            for v, a in self.arguments.items()
        )

    def create_arguments(self, step: Step) -> CreateArguments:
        """The arguments of CreateVolume: those of the first call while the volume may exist."""
        if self.maybe("volume", step.volume) and step.volume in self.arguments:
            return self.arguments[step.volume]
        least, id = max(1, step.size) * self.limits.unit, ""
        if step.source is Source.SNAPSHOT:
            least = max(least, self.snapshot_size.get(step.snapshot, 0))
            id = self.snapshot_ids.get(step.snapshot, "")
        if step.source is Source.VOLUME:
            least = max(least, self.largest.get(step.origin, 0))
            id = self.ids.get(step.origin, "")
        return CreateArguments(least, step.source, step.snapshot, step.origin, id)

    def source_known(self, arguments: CreateArguments) -> Known:
        """Whether the source of a volume still exists."""
        if arguments.source is Source.SNAPSHOT:
            known, id = (
                self.knowledge("snapshot", arguments.snapshot),
                self.snapshot_ids.get(arguments.snapshot),
            )
        else:
            known, id = self.knowledge("volume", arguments.origin), self.ids.get(arguments.origin)
        return known if id == arguments.source_id else Known.NO

    def expected_data(self) -> Iterator[tuple[int, int, int, bytes | None]]:
        """Volume, node, target and the data that must be there."""
        for fact, known in self.facts.items():
            if fact[0] != "published" or known is not Known.YES:
                continue
            volume, node, target = (int(part) for part in fact[1:])
            data = self.data.get(volume)
            ordered = volume not in self.abandoned and (volume, node) not in self.disordered
            if (
                ordered
                and self.knowledge("volume", volume) is Known.YES
                and not isinstance(data, UnknownData)
            ):
                yield volume, node, target, data

    # --- knowledge from answers

    def with_concurrent(self, others: Sequence[Step]) -> Model:
        """A copy in which the effects of calls in progress are uncertain."""
        changed = copy(self)
        changed.facts, changed.disordered = dict(self.facts), set(self.disordered)
        changed.arguments = dict(self.arguments)
        for step in others:
            if step.call == "CreateVolume" and not step.mistake:
                changed.arguments[step.volume] = self.create_arguments(step)
            if (effect := effect_of(step)) is not None:
                changed.facts[effect[0]] = _uncertain(changed.knowledge(*effect[0]), effect[1])
                if self.comes_too_early(step):
                    changed.disordered.add((step.volume, step.node))
        return changed

    def learn(self, moment: Sequence[tuple[Step, Answer]]) -> None:
        """Take over the answers of calls that were made at the same time."""
        touched: dict[Fact, set[bool]] = {}
        for step, answer in moment:
            if (effect := effect_of(step)) is not None:
                touched.setdefault(effect[0], set()).add(effect[1])
            self._learn_one(step, answer)
        for fact, values in touched.items():
            if len(values) > 1:  # opposite calls: any of them may have been the last
                self.facts[fact] = Known.MAYBE
        for volume, node in list(self.disordered):
            if not self.present_on(volume, node):
                self.disordered.discard((volume, node))

    def _learn_one(self, step: Step, answer: Answer) -> None:
        if step.mistake:
            return
        self._note_request(step)
        effect = effect_of(step)
        if answer.code is Code.OK:
            if effect is not None:
                self.facts[effect[0]] = Known.YES if effect[1] else Known.NO
            self._learn_success(step, answer)
        elif step.call == "CreateVolume" and answer.code is Code.NOT_FOUND:
            self._learn_missing_source(step.volume)
        elif effect is not None and answer.code not in REFUSALS:
            if step.call == "CreateVolume" and self.knowledge("volume", step.volume) is Known.MAYBE:
                self.outdated_ids.add(step.volume)
            self.facts[effect[0]] = _uncertain(self.knowledge(*effect[0]), effect[1])
            if (answer.code is not None and not effect[1]) or self.comes_too_early(step):
                self.disordered.add((step.volume, step.node))
            if step.call == "DeleteVolume":  # it may be gone, and be created again in its first size
                self.data[step.volume], self.capacity[step.volume] = UNKNOWN_DATA, 0
                if answer.code is None and self.in_use(step.volume):
                    self.abandoned.add(step.volume)

    def _learn_missing_source(self, volume: int) -> None:
        """Without its source the volume was not created by an earlier call without an answer either."""
        if volume in self.outdated_ids:
            self.outdated_ids.discard(volume)
        elif volume not in self.ids:
            self.facts["volume", volume] = Known.NO

    def _note_request(self, step: Step) -> None:
        """What is true whatever the answer is."""
        match step.call:
            case "CreateVolume":
                if not self.maybe("volume", step.volume):
                    self.arguments[step.volume] = self.create_arguments(step)
                    self.clone_origin.pop(step.volume, None)
                    if step.source is Source.VOLUME:
                        self.clone_origin[step.volume] = self.arguments.get(step.origin)
                    self.data[step.volume] = self._source_data(step)
                    self.capacity[step.volume] = 0
                    self.ids.pop(step.volume, None)  # the id of an earlier volume with this name
                    self.outdated_ids.discard(step.volume)
                    self.largest[step.volume] = self.arguments[step.volume].size
                elif self.knowledge("volume", step.volume) is Known.MAYBE:
                    first = self.arguments[step.volume]
                    copied = first.source is Source.VOLUME
                    if copied and self.data.get(first.origin) != self.data[step.volume]:
                        self.data[step.volume] = UNKNOWN_DATA  # copied before or after the write
            case "ControllerExpandVolume" | "NodeExpandVolume":
                largest = self.largest.get(step.volume, 0)
                self.largest[step.volume] = max(largest, step.size * self.limits.unit)
            case "CreateSnapshot":
                data = self.data.get(step.volume)
                if not self.maybe("snapshot", step.snapshot):
                    self.snapshot_ids.pop(step.snapshot, None)
                    self.snapshot_volume[step.snapshot] = step.volume
                    self.snapshot_origin[step.snapshot] = self.arguments.get(step.volume)
                    self.snapshot_source[step.snapshot] = self.ids.get(step.volume, "")
                    self.snapshot_data[step.snapshot] = data
                    self.snapshot_size[step.snapshot] = self.largest.get(step.volume, 0)
                elif self.knowledge("snapshot", step.snapshot) is Known.MAYBE:
                    if self.snapshot_data[step.snapshot] != data:  # taken before or after the write
                        self.snapshot_data[step.snapshot] = UNKNOWN_DATA
                    self.snapshot_size[step.snapshot] = self.largest.get(step.volume, 0)

    def _source_data(self, step: Step) -> Data:
        if step.source is Source.SNAPSHOT:
            return self.snapshot_data.get(step.snapshot)
        return self.data.get(step.origin) if step.source is Source.VOLUME else None

    def _learn_success(self, step: Step, answer: Answer) -> None:
        volume, node = step.volume, step.node
        match step.call:
            case "CreateVolume":
                self.ids[volume] = answer.id
                self.outdated_ids.discard(volume)
                self.capacity[volume] = max(self.capacity.get(volume, 0), answer.capacity)
                self.largest[volume] = max(self.largest.get(volume, 0), answer.capacity)
            case "DeleteVolume" if self.in_use(volume):
                self.abandoned.add(volume)
            case "ControllerPublishVolume":
                self.contexts[volume, node] = answer.context
            case "NodeStageVolume" | "NodePublishVolume":
                self._note_skipped_steps(step)
            case "ControllerUnpublishVolume" | "NodeUnstageVolume" if self.comes_too_early(step):
                name, _ = EFFECTS[step.call]
                self.facts[name, volume, node] = Known.MAYBE
                self.disordered.add((volume, node))
            case "ControllerExpandVolume":
                self.capacity[volume] = max(self.capacity.get(volume, 0), answer.capacity)
                self.largest[volume] = max(self.largest.get(volume, 0), answer.capacity)
            case "CreateSnapshot":
                self.snapshot_ids[step.snapshot] = answer.id
                self.snapshot_size[step.snapshot] = max(
                    self.snapshot_size.get(step.snapshot, 0), answer.capacity
                )

    def _note_skipped_steps(self, step: Step) -> None:
        """A driver that stages or publishes too early may have done the earlier steps: undo them, too."""
        earlier = {"attached": self.limits.attach, "staged": self.limits.stage}
        if step.call == "NodeStageVolume":
            del earlier["staged"]
        for name, needed in earlier.items():
            if needed and not self.maybe(name, step.volume, step.node):
                self.facts[name, step.volume, step.node] = Known.MAYBE

    def wrote(self, volume: int, data: bytes) -> None:
        self.data[volume] = data

    # --- take down

    def next_teardown_step(self) -> Step | None:
        """The next call that takes everything down in order; None when nothing is left."""
        volumes = [v for v in range(len(self.kinds)) if v not in self.abandoned]
        for volume in volumes:
            if (step := self.next_removal_step(volume)) is not None:
                return step
        # Copies before their sources: a driver may refuse to delete a source.
        free = [v for v in volumes if self.maybe("volume", v)]
        for volume in sorted(free, key=lambda v: (self.dependents(v), v)):
            if not self.dependents(volume):
                return Step("DeleteVolume", volume=volume)
            break
        for snapshot, volume in self.snapshot_volume.items():
            if self.maybe("snapshot", snapshot) and not self.has_restored_volumes(snapshot):
                if snapshot in self.snapshot_ids:
                    return Step("DeleteSnapshot", snapshot=snapshot)
                return Step("CreateSnapshot", volume=volume, snapshot=snapshot)
        # The source of an abandoned volume cannot be deleted in order: its copy may still exist.
        return Step("DeleteVolume", volume=free[0]) if free and not self.abandoned else None

    def next_verify_step(self, volume: int) -> Step | None:
        """The next call that brings a volume with data to a node, after it was taken off all others."""
        node = volume % self.limits.nodes
        for name, call, needed in (
            ("attached", "ControllerPublishVolume", self.limits.attach),
            ("staged", "NodeStageVolume", self.limits.stage),
        ):
            if needed and not self.maybe(name, volume, node):
                return Step(call, volume=volume, node=node)
        if not self.maybe("published", volume, node, 0):
            return Step("NodePublishVolume", volume=volume, node=node)
        return None

    def volumes_with_data(self) -> list[int]:
        """Volumes whose data is known, and can be read again."""
        return [
            volume
            for volume, data in self.data.items()
            if isinstance(data, bytes)
            and self.knowledge("volume", volume) is Known.YES
            and volume not in self.abandoned
        ]

    def next_removal_step(self, volume: int) -> Step | None:
        """The next call that takes a volume off all nodes."""
        if self.knowledge("volume", volume) is Known.MAYBE and not self.has_id(volume):
            return Step("CreateVolume", volume=volume)  # to learn its id
        for node in range(self.limits.nodes):
            for target in self.published_targets(volume, node):
                return Step("NodeUnpublishVolume", volume=volume, node=node, target=target)
            if self.maybe("staged", volume, node):
                return Step("NodeUnstageVolume", volume=volume, node=node)
            if self.maybe("attached", volume, node):
                return Step("ControllerUnpublishVolume", volume=volume, node=node)
        return None


def _uncertain(before: Known, value: bool) -> Known:
    return before if before is (Known.YES if value else Known.NO) else Known.MAYBE
