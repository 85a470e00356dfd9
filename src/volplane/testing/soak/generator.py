"""Random lives: mostly valid calls, by the model's state, with repeats, mistakes, faults and concurrency.

Pure: the same random numbers give the same life. Answers are predicted by the model; where the driver answers
otherwise within the rules, the rest of the life still makes sense: the rules cover every call in every state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from random import Random

from msgspec import Struct, structs

from volplane.csi.outcome import Code
from volplane.testing.soak.concurrency import may_run_together
from volplane.testing.soak.model import MAX_TARGETS, Answer, Known, Limits, Model
from volplane.testing.soak.rules import allowed_codes
from volplane.testing.soak.sent_steps import is_sent
from volplane.testing.soak.steps import (
    WRITE,
    Fault,
    Life,
    Mistake,
    Moment,
    Source,
    Step,
    VolumeKind,
)

MAX_VOLUMES, MAX_SNAPSHOTS, MAX_SIZE = 3, 2, 3
LONGEST = 26  # moments of a life
WRONG_ORDER, CONCURRENT = "wrong order", "concurrent"  # names for --skip, beside calls, faults and mistakes
_REMOVALS = ("NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume")
_KILLS = (Fault.KILL_DURING, Fault.KILL_AFTER)
_MISTAKES: dict[Mistake, tuple[str, ...]] = {
    Mistake.UNKNOWN_VOLUME: (
        "DeleteVolume",
        "ControllerPublishVolume",
        "ControllerUnpublishVolume",
        "NodeStageVolume",
        "NodeUnstageVolume",
        "NodePublishVolume",
        "NodeUnpublishVolume",
        "ControllerExpandVolume",
        "ValidateVolumeCapabilities",
        "CreateSnapshot",
        "NodeGetVolumeStats",
    ),
    Mistake.UNKNOWN_NODE: ("ControllerPublishVolume",),
    Mistake.NO_VOLUME: (
        "CreateVolume",
        "DeleteVolume",
        "NodeStageVolume",
        "NodeUnstageVolume",
        "NodePublishVolume",
        "NodeUnpublishVolume",
        "ControllerPublishVolume",
    ),
    Mistake.NO_CAPABILITY: (
        "CreateVolume",
        "ControllerPublishVolume",
        "NodeStageVolume",
        "NodePublishVolume",
    ),
    Mistake.OTHER_SIZE: ("CreateVolume",),
    Mistake.OTHER_SOURCE: ("CreateSnapshot",),
}
Weighted = tuple[float, Step]


class Menu(Struct, frozen=True):
    """What lives may contain."""

    limits: Limits
    calls: frozenset[str]  # that the driver has
    kinds: tuple[VolumeKind, ...] = (VolumeKind.MOUNT,)
    clones: bool = False
    skip: str = ""  # regular expression for names of calls, faults and mistakes
    node_expand: frozenset[VolumeKind] = frozenset()  # kinds that this machine can expand while published

    def has(self, name: str) -> bool:
        """Whether a call, fault or mistake is wanted."""
        return not (self.skip and _is_skipped(self.skip, name))

    def has_call(self, call: str) -> bool:
        return (call in self.calls or call == WRITE) and self.has(call)


@cache  # asked for each candidate of each moment
def _is_skipped(skip: str, name: str) -> bool:
    return re.search(skip, name) is not None


def generate(random: Random, menu: Menu) -> Life:
    count = random.choices(range(1, MAX_VOLUMES + 1), (5, 3, 2))[0]
    kinds = tuple(random.choice(menu.kinds) for _ in range(count))
    return _Generator(random, menu, kinds).make()


class _Generator:
    def __init__(self, random: Random, menu: Menu, kinds: tuple[VolumeKind, ...]) -> None:
        self._random, self._menu = random, menu
        self._model = Model(kinds, menu.limits)
        # Most lives have no kill: a restart takes longer than all calls of a life.
        self._kills_left = 1 if random.random() < 0.15 else 0
        self._fault_rate = random.choice((0.0, 0.08, 0.2))
        # A life goes up and down: for a few moments volumes are brought to nodes, then taken off.
        self._going_down = False

    def make(self) -> Life:
        moments: list[Moment] = []
        for number in range(self._random.randint(3, LONGEST)):
            if number % 6 == 5:
                self._going_down = self._random.random() < 0.5
            if not (moment := self._next_moment()):
                break
            moments.append(moment)
            self._predict(moment)
            lost = [s for s in moment if s.fault not in (Fault.NONE, Fault.KILL_AFTER)]
            # A caller repeats what has no answer, and calls whose answer it has forgotten.
            forgotten = [s for s in moment if s.call != WRITE and len(moment) == 1]
            if self._random.random() < (0.75 if lost else 0.12) and (lost or forgotten):
                lost = lost or forgotten
                again = tuple(structs.replace(step, fault=Fault.NONE, delay=0.0) for step in lost)
                if all(is_sent(self._model, step) for step in again):
                    moments.append(again)
                    self._predict(again)
        return Life(self._model.kinds, tuple(moments))

    def _next_moment(self) -> Moment:
        first = self._pick(list(self._candidates()))
        if first is None:
            return ()
        moment = [self._with_fault(first)]
        if self._menu.has(CONCURRENT) and self._random.random() < 0.15:
            for _ in range(self._random.randint(1, 2)):
                if (other := self._companion(moment)) is not None:
                    moment.append(other)
        return tuple(moment)

    def _pick(self, weighted: list[Weighted]) -> Step | None:
        usable = [(w, s) for w, s in weighted if self._menu.has_call(s.call) and is_sent(self._model, s)]
        if not usable:
            return None
        down = 4.0 if self._going_down else 1.0
        weights = [weight * (down if step.call in _REMOVALS else 1.0) for weight, step in usable]
        return self._random.choices([step for _, step in usable], weights)[0]

    def _companion(self, moment: list[Step]) -> Step | None:
        """A step that may run together with the others."""
        if self._random.random() < 0.4:
            again = structs.replace(moment[0], fault=Fault.NONE, delay=0.0)
            return again if all(may_run_together(self._model, again, other) for other in moment) else None
        fitting = [
            (weight, step)
            for weight, step in self._candidates()
            if all(may_run_together(self._model, step, other) for other in moment)
        ]
        return self._pick(fitting)

    def _with_fault(self, step: Step) -> Step:
        wanted = self._random.random() < self._fault_rate or (
            self._kills_left and self._random.random() < 0.12
        )
        if step.call == WRITE or step.mistake or not wanted:
            return step
        faults = [
            fault
            for fault in Fault
            if fault and self._menu.has(fault) and (fault not in _KILLS or self._kills_left)
        ]
        if not faults:
            return step
        weights = [3 if fault in _KILLS else 1 for fault in faults]
        fault = self._random.choices(faults, weights)[0]
        if fault in _KILLS:
            self._kills_left -= 1
        timed = fault in (Fault.DEADLINE, Fault.CUT, Fault.KILL_DURING)
        return structs.replace(
            step, fault=fault, delay=round(self._random.uniform(0.5, 30.0), 1) if timed else 0.0
        )

    def _predict(self, moment: Moment) -> None:
        self._model.learn([(step, predict_answer(self._model, step)) for step in moment])
        for step in moment:
            if step.call == WRITE:
                self._model.wrote(step.volume, b"predicted")

    # --- candidates

    def _candidates(self) -> Iterator[Weighted]:
        for volume in range(len(self._model.kinds)):
            yield from self._for_volume(volume)
        yield from self._for_snapshots()
        yield from self._queries()
        yield from self._mistakes()

    def _for_volume(self, volume: int) -> Iterator[Weighted]:
        model = self._model
        exists = model.knowledge("volume", volume)
        if exists is Known.MAYBE:
            yield 20, Step("CreateVolume", volume=volume)
            yield 2, Step("DeleteVolume", volume=volume)
            return
        if exists is Known.NO:
            yield 10, Step("CreateVolume", volume=volume)
            for snapshot in range(MAX_SNAPSHOTS):
                if model.knowledge("snapshot", snapshot) is Known.YES:
                    yield (
                        10,
                        Step("CreateVolume", volume=volume, source=Source.SNAPSHOT, snapshot=snapshot),
                    )
            if self._menu.clones:
                for origin in range(len(model.kinds)):
                    if model.knowledge("volume", origin) is Known.YES:
                        yield 4, Step("CreateVolume", volume=volume, source=Source.VOLUME, origin=origin)
            if volume in model.ids:  # calls for a volume that is gone
                yield 1, Step("DeleteVolume", volume=volume)
                yield 0.3, Step("NodeUnpublishVolume", volume=volume)
                yield 0.3, Step("NodeUnstageVolume", volume=volume)
                yield 0.3, Step("ControllerUnpublishVolume", volume=volume)
                yield 0.3, Step("ControllerPublishVolume", volume=volume)
            return
        yield 0.7, Step("CreateVolume", volume=volume)
        for size in range(2, MAX_SIZE + 1):
            yield 0.8, Step("ControllerExpandVolume", volume=volume, size=size)
        if not model.in_use(volume):
            yield 2.5, Step("DeleteVolume", volume=volume)
        elif self._menu.has(WRONG_ORDER):
            yield 0.1, Step("DeleteVolume", volume=volume)
        for snapshot in range(MAX_SNAPSHOTS):
            yield 0.9, Step("CreateSnapshot", volume=volume, snapshot=snapshot)
        for node in range(self._menu.limits.nodes):
            yield from self._on_node(volume, node)

    def _on_node(self, volume: int, node: int) -> Iterator[Weighted]:
        model, wrong = self._model, self._menu.has(WRONG_ORDER)
        attach, stage = self._menu.limits.attach, self._menu.limits.stage
        attached = not attach or model.knowledge("attached", volume, node) is Known.YES
        staged = attached and (not stage or model.knowledge("staged", volume, node) is Known.YES)
        published, used = model.published_targets(volume, node), model.used_on(volume, node)
        free = model.is_shared(volume) or not model.elsewhere(volume, node)
        if attach:
            missing = model.knowledge("attached", volume, node) is not Known.YES
            ready = 7.0 if missing and free else 0.5
            if free or wrong:
                yield ready, Step("ControllerPublishVolume", volume=volume, node=node)
            if not used:
                yield (
                    2 if model.maybe("attached", volume, node) else 0.4,
                    Step("ControllerUnpublishVolume", volume=volume, node=node),
                )
            elif wrong:
                yield 0.2, Step("ControllerUnpublishVolume", volume=volume, node=node)
        if stage and (attached or wrong):
            missing = model.knowledge("staged", volume, node) is not Known.YES
            yield (
                (9.0 if missing else 0.7) if attached else 0.2,
                Step("NodeStageVolume", volume=volume, node=node),
            )
        if stage and not published:
            yield (
                2.5 if model.maybe("staged", volume, node) else 0.5,
                Step("NodeUnstageVolume", volume=volume, node=node),
            )
        elif stage and wrong:
            yield 0.2, Step("NodeUnstageVolume", volume=volume, node=node)
        for target in range(MAX_TARGETS):
            yield from self._at_target(Step("", volume=volume, node=node, target=target), staged)

    def _at_target(self, at: Step, staged: bool) -> Iterator[Weighted]:
        known = self._model.knowledge("published", at.volume, at.node, at.target)
        if staged or self._menu.has(WRONG_ORDER):
            ready = (9.0 if at.target == 0 else 4.0) if known is not Known.YES else 0.7
            yield ready if staged else 0.1, structs.replace(at, call="NodePublishVolume")
        yield 2.5 if known is not Known.NO else 0.4, structs.replace(at, call="NodeUnpublishVolume")
        if known is Known.YES:
            fresh = self._model.data.get(at.volume) is None
            yield 10 if fresh else 4, structs.replace(at, call=WRITE)
        yield 0.3, structs.replace(at, call="NodeGetVolumeStats")
        size = self._model.capacity.get(at.volume, 0) // self._menu.limits.unit
        if size > 1 and self._model.kinds[at.volume] in self._menu.node_expand:
            yield 2, structs.replace(at, call="NodeExpandVolume", size=size)

    def _for_snapshots(self) -> Iterator[Weighted]:
        for snapshot, volume in self._model.snapshot_volume.items():
            match self._model.knowledge("snapshot", snapshot):
                case Known.MAYBE:
                    yield 10, Step("CreateSnapshot", volume=volume, snapshot=snapshot)
                case Known.YES:
                    yield 1.5, Step("DeleteSnapshot", snapshot=snapshot)
                case Known.NO:
                    yield 0.4, Step("DeleteSnapshot", snapshot=snapshot)

    def _queries(self) -> Iterator[Weighted]:
        for call in ("ListVolumes", "ListSnapshots", "GetCapacity", "Probe"):
            yield 0.4 if call.startswith("List") else 0.1, Step(call)
        for volume in range(len(self._model.kinds)):
            yield 0.3, Step("ControllerGetVolume", volume=volume)
            yield 0.2, Step("ValidateVolumeCapabilities", volume=volume)

    def _mistakes(self) -> Iterator[Weighted]:
        wanted = [mistake for mistake in _MISTAKES if self._menu.has(mistake)]
        if not wanted:
            return
        mistake = self._random.choice(wanted)
        call = self._random.choice(_MISTAKES[mistake])
        step = Step(
            call,
            volume=self._random.randrange(len(self._model.kinds)),
            node=self._random.randrange(self._menu.limits.nodes),
            snapshot=self._random.randrange(MAX_SNAPSHOTS),
            mistake=mistake,
        )
        if mistake is Mistake.UNKNOWN_NODE and self._model.knowledge("volume", step.volume) is not Known.YES:
            return
        yield 1.2, step


def predict_answer(model: Model, step: Step) -> Answer:
    """What a correct driver answers: OK if it may."""
    if step.fault not in (Fault.NONE, Fault.KILL_AFTER):
        return Answer(None)
    codes = allowed_codes(model, step)
    if Code.OK not in codes:
        return Answer(min(codes))
    size = max(step.size, 1) * model.limits.unit
    match step.call:
        case "CreateVolume":
            capacity = model.capacity.get(step.volume, 0) if model.maybe("volume", step.volume) else 0
            wanted = model.create_arguments(step).size
            return Answer(Code.OK, id=f"volume-{step.volume}", capacity=max(capacity, wanted))
        case "CreateSnapshot":
            return Answer(
                Code.OK,
                id=f"snapshot-{step.snapshot}",
                source=model.ids.get(step.volume, ""),
                capacity=model.largest.get(step.volume, 0),
            )
        case "ControllerExpandVolume":
            return Answer(Code.OK, capacity=max(size, model.capacity.get(step.volume, 0)))
        case _:
            return Answer(Code.OK)
