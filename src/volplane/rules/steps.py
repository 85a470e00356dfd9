"""The steps that all plans have in common; the controllers' frame carries them out.

A plan yields steps, which are carried out in order. `Wait` is one of them, so that the reason why nothing
happens comes from the code that decides it.
"""

from __future__ import annotations

from collections.abc import Hashable

from msgspec import Struct

from volplane.api.meta import Resource

TICK = 0.001  # seconds; what is left of a wait may be less than what a clock can tell, and is over then
UNTIL_CHANGED = float("inf")  # no timer: an object has to change first, and its event wakes the key


class Wait(Struct, frozen=True):
    """Nothing to do for that long, or until a change wakes the key."""

    seconds: float
    why: str  # what the CLI and the dashboard show when asked why nothing happens


class RecordEvent(Struct, frozen=True):
    """An event about the object that the plan is for, in the words users know."""

    type: str  # Normal or Warning
    reason: str
    message: str
    about: Resource | None = None  # where it is another object


class Requeue(Struct, frozen=True):
    """Plan another key of the same controller."""

    key: Hashable


CommonStep = Wait | RecordEvent | Requeue


def normal(reason: str, message: str, about: Resource | None = None) -> RecordEvent:
    return RecordEvent("Normal", reason, message, about)


def warning(reason: str, message: str, about: Resource | None = None) -> RecordEvent:
    return RecordEvent("Warning", reason, message, about)
