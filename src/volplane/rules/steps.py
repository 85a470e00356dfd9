"""The steps that all plans share; `loops.controller` carries them out.

A plan yields steps, which are carried out in order. `Wait` (`rules.waits`) is one of them, so that the reason
why nothing happens comes from the code that decides it.
"""

from __future__ import annotations

from collections.abc import Hashable

from msgspec import Struct

from volplane.api.meta import Resource
from volplane.rules.waits import Wait

TICK = 0.001  # seconds; a timer may fire early by this much, so a shorter wait is over


class RecordEvent(Struct, frozen=True):
    """Record an event about the object of the plan."""

    type: str  # Normal or Warning
    reason: str
    message: str
    about: Resource | None = None  # another object


class Requeue(Struct, frozen=True):
    """Plan another key of the same controller."""

    key: Hashable


CommonStep = Wait | RecordEvent | Requeue


def normal(reason: str, message: str, about: Resource | None = None) -> RecordEvent:
    return RecordEvent("Normal", reason, message, about)


def warning(reason: str, message: str, about: Resource | None = None) -> RecordEvent:
    return RecordEvent("Warning", reason, message, about)
