"""The result of `volplane explain`: one sentence, the steps of the object with the one that waits, advice.

Plain data, so that it can be printed for people and for programs alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum

from msgspec import Struct, structs

from volplane.rules.waits import Wait


class StepState(StrEnum):
    DONE = "done"
    WAITS = "waits"
    LATER = "later"  # follows the step that waits


class ExplanationStep(Struct, frozen=True, omit_defaults=True):
    state: StepState
    what: str  # `attach pv-1 to worker-2`
    who: str = ""  # the component that takes the step
    why: str = ""  # it waits, for people
    since: datetime | None = None
    until: datetime | None = None  # the next attempt, or the end of the wait
    ends: str = ""  # what happens then
    details: tuple[str, ...] = ()
    reason: str = ""  # the WaitReason of the plan that waits, for programs


class Explanation(Struct, frozen=True):
    """What was found out about one object; several are added up to a result."""

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
    unknown: tuple[str, ...] = ()  # what could not be read or asked


def done_step(what: str, who: str = "", *details: str, since: datetime | None = None) -> ExplanationStep:
    return ExplanationStep(StepState.DONE, what, who, since=since, details=details)


def later_step(what: str, who: str = "") -> ExplanationStep:
    return ExplanationStep(StepState.LATER, what, who)


def waiting_step(
    what: str,
    who: str,
    why: str | Wait,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    ends: str = "",
    details: Iterable[str] = (),
) -> ExplanationStep:
    text, reason = (why.text, why.reason.value) if isinstance(why, Wait) else (why, "")
    return ExplanationStep(StepState.WAITS, what, who, text, since, until, ends, tuple(details), reason)


def build_result(
    subject: str, explanation: Explanation, at: datetime, summary: str, unknown: Sequence[str] = ()
) -> ExplainResult:
    """`summary`: the sentence where nothing waits."""
    first = explanation.first_wait
    steps, advice = explanation.steps, explanation.advice
    if first is None:
        return ExplainResult(subject, False, summary, at, steps, advice, tuple(unknown))
    return ExplainResult(subject, True, first.why, at, _drop_repeated_steps(steps), advice, tuple(unknown))


def _drop_repeated_steps(steps: Sequence[ExplanationStep]) -> tuple[ExplanationStep, ...]:
    """Without steps that only repeat the one before them."""
    shown: list[ExplanationStep] = []
    for step in steps:
        if shown and structs.replace(shown[-1], details=()) == structs.replace(step, details=()):
            continue
        shown.append(step)
    return tuple(shown)
