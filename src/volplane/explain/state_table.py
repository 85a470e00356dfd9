"""Desired and actual state as text: a table for each role, the pending step below its row.

Lines are no wider than asked, unless a single word is. The caller adds colours.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime

from volplane.explain.cluster_state import format_duration
from volplane.explain.render import PROBLEM_MARK, WHOLE_WORDS
from volplane.explain.state_of_world import RoleStates, StateReport, StateSource
from volplane.loops.volume_states import ATTACH_DETACH_ROLE, ComparedVolume, PendingStep

NOTHING = "-"
GAP = "  "


def render_states(report: StateReport, width: int = 100) -> Iterator[str]:
    for number, role in enumerate(report.roles):
        if number:
            yield ""
        yield _head(role)
        yield from _rows(role, report.at, width)
        if role.unknown:
            yield from wrap("  not known: ", role.unknown, width)
    yield from list_unknown(report.unknown, width)


def list_unknown(lines: Sequence[str], width: int) -> Iterator[str]:
    if lines:
        yield ""
        yield "Not known"
        for line in lines:
            yield from wrap("  - ", line, width)


def _head(role: RoleStates) -> str:
    title = "attach/detach controller" if role.role == ATTACH_DETACH_ROLE else "kubelet"
    if role.source is StateSource.NONE:
        return f"{role.role} ({title})"
    count, pending = role.count, len(role.pending)
    differ = f"{pending} to do" if pending else "nothing to do"
    derived = ", derived from the API" if role.source is StateSource.API else ""
    return f"{role.role} ({title}{derived}): {count} {'entry' if count == 1 else 'entries'}, {differ}"


def _rows(role: RoleStates, now: datetime, width: int) -> Iterator[str]:
    if not role.volumes:
        return
    is_controller = role.role == ATTACH_DETACH_ROLE
    head = ("VOLUME", *(("NODE",) if is_controller else ()), "POD", "DESIRED", "ACTUAL")
    rows = [_cells(volume, is_controller=is_controller) for volume in role.volumes]
    lines = align([head, *rows])
    yield f"  {lines[0]}"
    for volume, line in zip(role.volumes, lines[1:], strict=True):
        yield f"  {line}"
        if volume.pending is not None:
            yield from wrap(PROBLEM_MARK, _describe_pending(volume.pending, now), width)


def _cells(volume: ComparedVolume, *, is_controller: bool) -> tuple[str, ...]:
    place = (volume.node,) if is_controller else ()
    texts = (volume.name, *place, ",".join(volume.pods), volume.desired, volume.actual)
    return tuple(text or NOTHING for text in texts)


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows with columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [GAP.join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _describe_pending(step: PendingStep, now: datetime) -> str:
    since = f"since {format_duration(now - step.since)}" if step.since else ""
    left = f"next try in {format_duration(step.next_try - now)}" if step.next_try else ""
    times = ", ".join(filter(None, (since, left)))
    return f"{step.text} ({times})" if times else step.text


def wrap(lead: str, text: str, width: int) -> list[str]:
    """The text after its lead; further lines are indented as far as the first."""
    below = " " * len(lead)
    return textwrap.wrap(text, width, initial_indent=lead, subsequent_indent=below, **WHOLE_WORDS)
