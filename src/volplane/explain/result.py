"""What is said about an object: one sentence, the way it has to go with the step that waits, what to do.

Plain data, so that it can be printed for people and for programs alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum

from msgspec import Struct, structs


class StepState(StrEnum):
    DONE = "done"
    WAITS = "waits"
    LATER = "later"  # comes after what waits


class ExplanationStep(Struct, frozen=True, omit_defaults=True):
    state: StepState
    what: str  # the step: `attach to worker-2`
    who: str = ""  # takes it, or has taken it
    why: str = ""  # it waits, in the words of the code that decides
    since: datetime | None = None
    until: datetime | None = None  # then it is tried again, or ends by itself
    ends: str = ""  # what happens then
    details: tuple[str, ...] = ()


class Explanation(Struct, frozen=True):
    """What was found out about one object; several make up an answer."""

    steps: tuple[ExplanationStep, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def first_wait(self) -> ExplanationStep | None:
        return next((step for step in self.steps if step.state is StepState.WAITS), None)

    def __add__(self, other: Explanation) -> Explanation:
        advice = dict.fromkeys((*self.advice, *other.advice))
        return Explanation((*self.steps, *other.steps), tuple(advice))


class ExplainResult(Struct, frozen=True, omit_defaults=True):
    subject: str  # pod/default/web-0
    waits: bool
    answer: str
    at: datetime
    steps: tuple[ExplanationStep, ...] = ()
    advice: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()  # what could not be asked


def done_step(what: str, who: str = "", *details: str, since: datetime | None = None) -> ExplanationStep:
    return ExplanationStep(StepState.DONE, what, who, since=since, details=details)


def later_step(what: str, who: str = "") -> ExplanationStep:
    return ExplanationStep(StepState.LATER, what, who)


def waiting_step(
    what: str,
    who: str,
    why: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    ends: str = "",
    details: Iterable[str] = (),
) -> ExplanationStep:
    return ExplanationStep(StepState.WAITS, what, who, why, since, until, ends, tuple(details))


def build_result(
    subject: str, story: Explanation, at: datetime, rest: str, unknown: Sequence[str] = ()
) -> ExplainResult:
    """`rest`: what is said where nothing waits."""
    first = story.first_wait
    if first is None:
        return ExplainResult(subject, False, rest, at, story.steps, story.advice, tuple(unknown))
    return ExplainResult(
        subject, True, first.why, at, _drop_repeated_steps(story.steps), story.advice, tuple(unknown)
    )


def _drop_repeated_steps(steps: Sequence[ExplanationStep]) -> tuple[ExplanationStep, ...]:
    """A step that stands for the same as the one before it is not said twice."""
    shown: list[ExplanationStep] = []
    for step in steps:
        if shown and structs.replace(shown[-1], details=()) == structs.replace(step, details=()):
            continue
        shown.append(step)
    return tuple(shown)
