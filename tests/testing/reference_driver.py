"""A correct CSI driver in memory, for tests of the soak model: it answers by its own state.

Where the specification leaves a choice, one driver differs from the next: some refuse to delete a volume that
is in use, some allow it. A call without an answer was done or not, at random.
"""

from __future__ import annotations

from random import Random

from msgspec import Struct

from volplane.csi.outcome import Code
from volplane.testing.soak.generator import predict_answer
from volplane.testing.soak.model import Answer, CreateArguments, Limits, Model
from volplane.testing.soak.steps import Fault, Source, Step

MISSING, IN_USE = Answer(Code.NOT_FOUND), Answer(Code.FAILED_PRECONDITION)
OK = Answer(Code.OK)
WRONG_ORDER = (Code.FAILED_PRECONDITION, Code.INTERNAL, Code.NOT_FOUND, Code.INVALID_ARGUMENT)


class StoredVolume(Struct):
    name: int
    id: str
    size: int
    data: bytes | None
    source_id: str = ""  # of a volume or a snapshot


class StoredSnapshot(Struct):
    name: int
    id: str
    volume_id: str
    size: int
    data: bytes | None


class ReferenceDriver:
    def __init__(self, random: Random, limits: Limits) -> None:
        self._random, self._limits = random, limits
        self.volumes: dict[str, StoredVolume] = {}  # by id
        self.snapshots: dict[str, StoredSnapshot] = {}
        self.attached: set[tuple[str, int]] = set()  # id and node
        self.staged: set[tuple[str, int]] = set()
        self.published: set[tuple[str, int, int]] = set()  # id, node and target
        self._count = 0
        self._refuses_in_use, self._refuses_sources, self._one_target = (
            random.random() < 0.5 for _ in range(3)
        )
        self._refuses_wrong_order, self._unmounts_all, self._same_ids = (
            random.random() < 0.5 for _ in range(3)
        )

    def call(self, model: Model, step: Step) -> Answer:
        """The answer for a step; `model` has the ids that the caller sends."""
        if step.mistake:
            return predict_answer(model, step)
        if step.fault in (Fault.NONE, Fault.KILL_AFTER):
            return self._handle(model, step)
        if self._random.random() < 0.5:
            self._handle(model, step)
        return Answer(None)

    def write(self, model: Model, step: Step, data: bytes) -> None:
        self.volumes[model.ids[step.volume]].data = data

    def leftovers(self) -> list[object]:
        return [*self.volumes, *self.snapshots, *self.attached, *self.staged, *self.published]

    def _handle(self, model: Model, step: Step) -> Answer:
        id, node = model.ids.get(step.volume, "never-created"), step.node
        match step.call:
            case "CreateVolume":
                return self._create(model.create_arguments(step), step.volume)
            case "DeleteVolume":
                return self._delete(id)
            case "CreateSnapshot":
                return self._create_snapshot(step.snapshot, id)
            case "DeleteSnapshot":
                return self._delete_snapshot(model.snapshot_ids.get(step.snapshot, ""))
            case "ListVolumes":
                return Answer(Code.OK, listed={v.id: v.size for v in self.volumes.values()})
            case "ListSnapshots":
                return Answer(Code.OK, listed=dict.fromkeys(self.snapshots, 0))
            case "ControllerUnpublishVolume":
                used = any(place[:2] == (id, node) for place in self.staged | self.published)
                if used and self._refuses_wrong_order:
                    return self._wrong_order()
                self.attached.discard((id, node))
                return OK
            case "NodeUnstageVolume":
                return self._unstage(id, node)
            case "NodeUnpublishVolume":
                self.published.discard((id, node, step.target))
                return OK
            case "NodeGetVolumeStats":
                return OK if (id, node, step.target) in self.published and id in self.volumes else MISSING
            case "GetCapacity" | "Probe" | "NodeGetInfo":
                return OK
        if id not in self.volumes:
            return MISSING
        match step.call:
            case "ControllerPublishVolume":
                elsewhere = any(i == id and n != node for i, n in self.attached)
                if elsewhere and not model.is_shared(step.volume):
                    return IN_USE
                self.attached.add((id, node))
                return Answer(Code.OK, context={"device": id})
            case "NodeStageVolume":
                return self._stage(id, node)
            case "NodePublishVolume":
                return self._publish(id, node, step.target, is_shared=model.is_shared(step.volume))
            case "ControllerExpandVolume":
                return self._expand(self.volumes[id], step.size * self._limits.unit)
            case "ControllerGetVolume":
                return Answer(Code.OK, id=id, capacity=self.volumes[id].size)
        return OK

    def _new_id(self, kind: str, name: int) -> str:
        self._count += 1
        return f"{kind}-{name}" if self._same_ids else f"{kind}-{name}-{self._count}"

    def _wrong_order(self) -> Answer:
        return Answer(self._random.choice(WRONG_ORDER))

    def _in_use(self, id: str) -> bool:
        return any(place[0] == id for place in self.attached | self.staged | self.published)

    # --- controller

    def _create(self, arguments: CreateArguments, name: int) -> Answer:
        if found := next((v for v in self.volumes.values() if v.name == name), None):
            return Answer(Code.OK, id=found.id, capacity=found.size)
        source: StoredVolume | StoredSnapshot | None = None
        if arguments.source is Source.SNAPSHOT:
            source = self.snapshots.get(arguments.source_id)
        elif arguments.source is Source.VOLUME:
            source = self.volumes.get(arguments.source_id)
        if source is None and arguments.source is not Source.NONE:
            return MISSING
        if source is not None and source.size > arguments.size:
            return Answer(Code.OUT_OF_RANGE)
        data = source.data if source is not None else None
        made = StoredVolume(name, self._new_id("volume", name), arguments.size, data, arguments.source_id)
        self.volumes[made.id] = made
        return Answer(Code.OK, id=made.id, capacity=made.size)

    def _delete(self, id: str) -> Answer:
        cloned = any(v.source_id == id for v in self.volumes.values())
        copied = cloned or any(s.volume_id == id for s in self.snapshots.values())
        if id in self.volumes and copied and self._refuses_sources:
            return IN_USE
        if id in self.volumes and self._in_use(id) and self._refuses_in_use:
            return IN_USE
        self.volumes.pop(id, None)
        return OK

    def _expand(self, volume: StoredVolume, size: int) -> Answer:
        if self._in_use(volume.id) and not self._limits.online:
            return IN_USE
        volume.size = max(volume.size, size)
        return Answer(Code.OK, capacity=volume.size)

    def _create_snapshot(self, name: int, volume_id: str) -> Answer:
        found = next((s for s in self.snapshots.values() if s.name == name), None)
        if found is None:
            if (volume := self.volumes.get(volume_id)) is None:
                return MISSING
            found = StoredSnapshot(name, self._new_id("snapshot", name), volume_id, volume.size, volume.data)
            self.snapshots[found.id] = found
        return Answer(Code.OK, id=found.id, source=found.volume_id, capacity=found.size)

    def _delete_snapshot(self, id: str) -> Answer:
        if self._refuses_sources and any(v.source_id == id for v in self.volumes.values()):
            return IN_USE
        self.snapshots.pop(id, None)
        return OK

    # --- node

    def _stage(self, id: str, node: int) -> Answer:
        early = self._limits.attach and (id, node) not in self.attached
        if early and self._refuses_wrong_order:
            return self._wrong_order()
        self.staged.add((id, node))
        return OK

    def _unstage(self, id: str, node: int) -> Answer:
        targets = {place for place in self.published if place[:2] == (id, node)}
        if targets and self._refuses_wrong_order:
            return self._wrong_order()
        self.staged.discard((id, node))
        if self._unmounts_all:
            self.published -= targets
        return OK

    def _publish(self, id: str, node: int, target: int, *, is_shared: bool) -> Answer:
        early = (self._limits.attach and (id, node) not in self.attached) or (
            self._limits.stage and (id, node) not in self.staged
        )
        if early and self._refuses_wrong_order:
            return self._wrong_order()
        others = [place for place in self.published if place[:2] == (id, node) and place[2] != target]
        again = (id, node, target) in self.published
        if others and not again and self._one_target and not is_shared:
            return IN_USE
        self.published.add((id, node, target))
        return OK
