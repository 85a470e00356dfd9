"""What is said about an object: one sentence, the way it has to go with the step that waits, what to do.

Plain data, so that it can be printed for people and for programs alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum

from msgspec import Struct, structs


class State(StrEnum):
    DONE = "done"
    WAITS = "waits"
    LATER = "later"  # comes after what waits


class Step(Struct, frozen=True, omit_defaults=True):
    state: State
    what: str  # the step: `attach to worker-2`
    who: str = ""  # takes it, or has taken it
    why: str = ""  # it waits, in the words of the code that decides
    since: datetime | None = None
    until: datetime | None = None  # then it is tried again, or ends by itself
    ends: str = ""  # what happens then
    details: tuple[str, ...] = ()


class Story(Struct, frozen=True):
    """What was found out about one object; several make up an answer."""

    steps: tuple[Step, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def waits(self) -> Step | None:
        return next((step for step in self.steps if step.state is State.WAITS), None)

    def __add__(self, other: Story) -> Story:
        advice = dict.fromkeys((*self.advice, *other.advice))
        return Story((*self.steps, *other.steps), tuple(advice))


class Answer(Struct, frozen=True, omit_defaults=True):
    subject: str  # pod/default/web-0
    waits: bool
    answer: str
    at: datetime
    steps: tuple[Step, ...] = ()
    advice: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()  # what could not be asked


def done(what: str, who: str = "", *details: str, since: datetime | None = None) -> Step:
    return Step(State.DONE, what, who, since=since, details=details)


def later(what: str, who: str = "") -> Step:
    return Step(State.LATER, what, who)


def waits(
    what: str,
    who: str,
    why: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    ends: str = "",
    details: Iterable[str] = (),
) -> Step:
    return Step(State.WAITS, what, who, why, since, until, ends, tuple(details))


def told(subject: str, story: Story, at: datetime, rest: str, unknown: Sequence[str] = ()) -> Answer:
    """`rest`: what is said where nothing waits."""
    first = story.waits
    if first is None:
        return Answer(subject, False, rest, at, story.steps, story.advice, tuple(unknown))
    return Answer(subject, True, first.why, at, _after(story.steps), story.advice, tuple(unknown))


def _after(steps: Sequence[Step]) -> tuple[Step, ...]:
    """A step that stands for the same as the one before it is not said twice."""
    shown: list[Step] = []
    for step in steps:
        if shown and structs.replace(shown[-1], details=()) == structs.replace(step, details=()):
            continue
        shown.append(step)
    return tuple(shown)
