"""Which steps of a journey are shown: the last way forwards, the last way back, or all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from volplane.explain.journey.model import JourneyStep, Phase

ONCE = frozenset({Phase.PROVISION, Phase.BIND})  # not repeated when the volume moves
# Steps for a pod with which its way begins; a restarted node begins with the mounts.
STARTS, STOPS = frozenset({Phase.SCHEDULE, Phase.PUBLISH, Phase.START}), frozenset({Phase.STOP})


def select_forwards(steps: Iterable[JourneyStep]) -> tuple[JourneyStep, ...]:
    """Provisioning, binding, and how the volume came to its newest pod."""
    chosen = [step for step in steps if not step.phase.is_back and step.phase is not Phase.OTHER]
    since = _last_beginning(chosen, steps)
    return tuple(step for step in chosen if step.phase in ONCE or since is None or step.at >= since)


def select_back(steps: Iterable[JourneyStep]) -> tuple[JourneyStep, ...]:
    """From the end of the pod that was stopped last, to the deletion of the disk."""
    every = tuple(steps)
    since = _last_turn(every, begins=STOPS, ends=STARTS)
    return tuple(step for step in every if step.phase.is_back and (since is None or step.at >= since))


def hide_details(steps: Sequence[JourneyStep]) -> tuple[JourneyStep, ...]:
    """Without what is a part of another step (the API server's and the driver's side of a call), and without
    conflicts, which are retried at once.
    """
    shown = {step.id for step in steps if step.id}
    return tuple(step for step in steps if not _is_detail(step, shown) and not _is_conflict(step))


def _is_conflict(step: JourneyStep) -> bool:
    return step.error.startswith(("Conflict:", "StaleRevision:"))


def _is_detail(step: JourneyStep, shown: set[str]) -> bool:
    return step.parent in shown and step.component in ("apiserver", "driver")


def _last_beginning(chosen: Sequence[JourneyStep], steps: Iterable[JourneyStep]) -> datetime | None:
    return _last_turn(tuple(steps) or tuple(chosen), begins=STARTS, ends=STOPS)


def _last_turn(
    steps: Sequence[JourneyStep], *, begins: frozenset[Phase], ends: frozenset[Phase]
) -> datetime | None:
    """When a pod last began to start (or to stop). A pod of the same name may do it again and again."""
    begun: dict[str, datetime] = {}
    last: datetime | None = None
    for step in steps:
        if not step.subject.startswith("pod/"):
            continue
        if step.phase in ends:
            begun.pop(step.subject, None)
        elif step.phase in begins and step.subject not in begun:
            begun[step.subject] = last = step.at
    return last
