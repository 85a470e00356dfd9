"""The result of `volplane explain` as text: the sentence, the steps, what to do.

Lines are no wider than asked, unless a single word is. The caller adds colours.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from volplane.explain.cluster_state import format_duration
from volplane.explain.result import ExplainResult, ExplanationStep, StepState

WHOLE_WORDS: Any = {"break_long_words": False, "break_on_hyphens": False}  # so that names can be copied
MARKS = {StepState.DONE: "✓", StepState.WAITS: "▶", StepState.LATER: "·"}
PROBLEM_MARK = f"    {MARKS[StepState.WAITS]} "  # begins a line about a problem, in tables


def render_lines(answer: ExplainResult, width: int = 100) -> Iterator[str]:
    head = f"{answer.subject} {'waits' if answer.waits else 'does not wait'}: {answer.answer}"
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
        yield "Not known"
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
            f"{step.ends or 'checked again'} in {format_duration(left)}"
            if left.total_seconds() > 0
            else "now"
        )
    return "; ".join(filter(None, (since, until)))


def _wrap(lead: str, text: str, width: int) -> list[str]:
    """The text after its lead; further lines are indented as far as the first."""
    below = " " * len(lead)
    lines = textwrap.wrap(text, width, initial_indent=lead, subsequent_indent=below, **WHOLE_WORDS)
    return lines or [lead.rstrip()]
