"""Which steps may run at the same time: those whose outcome is clear, or known to be uncertain. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from volplane.testing.soak.model import Model, effect_of
from volplane.testing.soak.sent_steps import is_sent
from volplane.testing.soak.steps import QUERIES, WRITE, Fault, Source, Step

_MOUNTING = ("NodePublishVolume", "NodeUnpublishVolume")
UNMOUNTS = ("NodeUnpublishVolume", "NodeUnstageVolume")
_STAGING = ("NodeStageVolume", "NodeUnstageVolume")


def may_run_together(model: Model, step: Step, other: Step) -> bool:
    """On different volumes; on one volume the same call, a query, mounts of one node, or opposite stages."""
    if step.call == WRITE and other.call == WRITE and step.volume == other.volume:
        return False
    if _without_fault(step) == _without_fault(other) or step.call in QUERIES or other.call in QUERIES:
        return True
    if not _used_objects(model, step) & _used_objects(model, other):
        return True
    if step.call in _MOUNTING and other.call in _MOUNTING:
        return (step.volume, step.node) == (other.volume, other.node)
    mine, theirs = effect_of(step), effect_of(other)
    if mine is None or theirs is None or step.call not in _STAGING or other.call not in _STAGING:
        return False
    return mine[0] == theirs[0]  # stage and unstage: the outcome is uncertain


def _without_fault(step: Step) -> Step:
    return structs.replace(step, fault=Fault.NONE, delay=0.0)


def _used_objects(model: Model, step: Step) -> set[tuple[str, int]]:
    """The volumes and snapshots that a call uses."""
    if step.call in ("CreateSnapshot", "DeleteSnapshot") or step.source is Source.SNAPSHOT:
        found = {("snapshot", step.snapshot)}
    else:
        found = set[tuple[str, int]]()
    if step.call == "DeleteSnapshot":
        return found
    found.add(("volume", step.volume))
    if step.source is Source.VOLUME:
        found.add(("volume", step.origin))
    # A driver may refuse to delete a source while its copy is made.
    arguments = model.arguments.get(step.volume)
    if step.call == "CreateVolume" and arguments is not None:
        if arguments.source is Source.SNAPSHOT:
            found.add(("snapshot", arguments.snapshot))
        if arguments.source is Source.VOLUME:
            found.add(("volume", arguments.origin))
    return found


def select_steps(model: Model, moment: Iterable[Step]) -> list[Step]:
    """The steps of a moment that make sense now, without those that may not run beside an earlier one."""
    chosen: list[Step] = []
    for step in moment:
        if is_sent(model, step) and all(may_run_together(model, step, other) for other in chosen):
            chosen.append(step)
    return chosen


def keeps_target_busy(unmount: Step, others: Iterable[Step]) -> bool:
    """Whether one of the concurrent calls may keep the kernel from unmounting for a moment."""
    return unmount.call in UNMOUNTS and any(
        other.call == "NodeGetVolumeStats" and (other.volume, other.node) == (unmount.volume, unmount.node)
        for other in others
    )
