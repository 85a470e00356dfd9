"""The changes of state in the order in which they happened, and which step caused each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from volplane.explain.journey.model import Journey, JourneyStep, StateHistory, StepOutcome, Transition


def list_transitions(journeys: Iterable[Journey], subject: str = "") -> StateHistory:
    """The transitions of all objects of the journeys, or of one of them (`pvc/default/data`)."""
    found: dict[tuple[str, str, str], Transition] = {}
    unknown: dict[str, None] = {}
    for journey in journeys:
        by_id = {step.id: step for step in journey.steps if step.id}
        unknown |= dict.fromkeys(journey.unknown)
        for number, step in enumerate(journey.steps):
            if step.outcome in (StepOutcome.OK, StepOutcome.CUT_OFF) and (
                not subject or step.subject == subject
            ):
                for each in _of_step(step, by_id):
                    # A pod of two claims is in both journeys.
                    found[(step.id or f"{journey.trace}/{number}", each.subject, each.field)] = each
    ordered = sorted(found.values(), key=lambda transition: transition.at)
    return StateHistory(subject, tuple(ordered), tuple(unknown))


def _of_step(step: JourneyStep, by_id: dict[str, JourneyStep]) -> Iterator[Transition]:
    for change in step.changes:
        yield Transition(
            at=step.end,
            subject=step.subject,
            field=change.field,
            before=change.before,
            event=_describe_cause(step, by_id),
            after=change.after,
            source=step.source,
        )


def _describe_cause(step: JourneyStep, by_id: dict[str, JourneyStep]) -> str:
    parent = by_id.get(step.parent)
    if parent is not None:
        return f"{parent.component}: {parent.what}"
    who = step.details.get("manager") or step.details.get("user") or step.component
    return f"{who}: {step.what}"
