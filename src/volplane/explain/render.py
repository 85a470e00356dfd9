"""An answer for people: one sentence first, then the way with the step that waits, then what to do.

Plain lines, no wider than asked where words allow; colours are put on by whoever prints to a terminal.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from volplane.explain.cluster_state import format_duration
from volplane.explain.result import ExplainResult, ExplanationStep, StepState

WHOLE_WORDS: Any = {"break_long_words": False, "break_on_hyphens": False}  # names are copied from here
MARKS = {StepState.DONE: "✓", StepState.WAITS: "▶", StepState.LATER: "·"}


def render_lines(answer: ExplainResult, width: int = 100) -> Iterator[str]:
    head = f"{answer.subject} {'waits' if answer.waits else 'waits for nothing'}: {answer.answer}"
    yield from textwrap.wrap(head, width, subsequent_indent="  ", **WHOLE_WORDS)
    first = next((step for step in answer.steps if step.state is StepState.WAITS), None)
    if first is not None and (when := _when(first, answer)):
        yield f"  {when}"
    if answer.steps:
        yield ""
    for step in answer.steps:
        yield from _step(step, answer, width, again=step is not first)
    if answer.advice:
        yield ""
        yield "What to do"
        for line in answer.advice:
            yield from _wrap("  - ", line, width)
    if answer.unknown:
        yield ""
        yield "Could not be asked"
        for line in answer.unknown:
            yield from _wrap("  - ", line, width)


def _step(step: ExplanationStep, answer: ExplainResult, width: int, *, again: bool) -> Iterator[str]:
    who = f"  [{step.who}]" if step.who else ""
    yield from _wrap(f"  {MARKS[step.state]} ", f"{step.what}{who}", width)
    if step.why and again:
        yield from _wrap("      ", step.why, width)
        if when := _when(step, answer):
            yield f"      {when}"
    for line in step.details:
        yield from _wrap("      - ", line, width)


def _when(step: ExplanationStep, answer: ExplainResult) -> str:
    since = (
        f"since {step.since:%H:%M:%S} UTC ({format_duration(answer.at - step.since)})" if step.since else ""
    )
    until = ""
    if step.until is not None:
        left = step.until - answer.at
        until = (
            f"{step.ends or 'looked at again'} in {format_duration(left)}"
            if left.total_seconds() > 0
            else "now"
        )
    return "; ".join(filter(None, (since, until)))


def _wrap(lead: str, text: str, width: int) -> list[str]:
    """The first line after its lead, the others below its beginning."""
    below = " " * len(lead)
    made = textwrap.wrap(text, width, initial_indent=lead, subsequent_indent=below, **WHOLE_WORDS)
    return made or [lead.rstrip()]
