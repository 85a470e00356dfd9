"""A journey as a Mermaid sequence diagram, as Markdown viewers draw it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from volplane.explain.journey.model import JourneyStep, Lane, Phase, StepOutcome
from volplane.explain.journey.render_text import format_milliseconds, shorten_subject

ARROWS = {
    StepOutcome.OK: "->>",
    StepOutcome.FAILED: "-x",
    StepOutcome.IN_PROGRESS: "--)",
    StepOutcome.CUT_OFF: "--x",
}


def render_mermaid(steps: Sequence[JourneyStep], title: str = "") -> Iterator[str]:
    if title:
        yield "---"
        yield f"title: {_escape(title)}"
        yield "---"
    yield "sequenceDiagram"
    lanes = {step.lane for step in steps} | {step.to for step in steps}
    for lane in Lane:
        if lane in lanes:
            yield f"    participant {participant(lane)} as {lane}"
    phase: Phase | None = None
    for step in steps:
        if step.phase is not phase and step.phase is not Phase.OTHER:
            phase = step.phase
            yield f"    Note over {participant(step.lane)}: {phase}"
        yield f"    {participant(step.lane)}{ARROWS[step.outcome]}{participant(step.to)}: {_label(step)}"


def participant(lane: Lane) -> str:
    return re.sub(r"\W", "", lane.value.title())


def _label(step: JourneyStep) -> str:
    took = f" ({format_milliseconds(step.seconds)})" if step.seconds else ""
    failed = f" {step.outcome}: {step.error}"[:80] if step.outcome is not StepOutcome.OK else ""
    return _escape(f"{step.what} {shorten_subject(step.subject)}{took}{failed}")


def _escape(text: str) -> str:
    """Mermaid ends a message at a semicolon, and reads # as an entity."""
    return " ".join(text.replace("#", "#35;").replace(";", "#59;").split())
