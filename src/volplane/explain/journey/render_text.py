"""A journey and a history of states as text, for a terminal of any width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from volplane.explain.cluster_state import format_duration
from volplane.explain.journey.model import (
    Journey,
    JourneyStep,
    StateHistory,
    StepOutcome,
    StepSource,
    Transition,
)
from volplane.explain.state_table import align, list_unknown, wrap

PROBLEM = "    ! "
MARKS = {
    StepOutcome.OK: "",
    StepOutcome.FAILED: "failed",
    StepOutcome.IN_PROGRESS: "in progress",
    StepOutcome.CUT_OFF: "cut off: its process ended",
}
LONGEST_SUBJECT = 40
SHOWN_CHANGES = 2  # of one step; `volplane states` has all
SHOWN_DETAILS = ("container", "message")


def render_journeys(
    journeys: Sequence[Journey], shown: Sequence[Sequence[JourneyStep]], width: int = 100
) -> Iterator[str]:
    """`shown`: the steps to show of each journey."""
    for number, (journey, steps) in enumerate(zip(journeys, shown, strict=True)):
        if number:
            yield ""
        yield from render_journey(journey, steps, width)


def render_journey(journey: Journey, steps: Sequence[JourneyStep], width: int = 100) -> Iterator[str]:
    yield f"{journey.subject}: {journey.outcome}"
    yield from _facts(journey)
    yield ""
    yield from step_table(steps, steps[0].at if steps else journey.began, width)
    if measured := list_measured(journey):
        yield ""
        yield "Measured by the kubelet"
        for line in measured:
            yield from wrap("  - ", line, width)
    yield from list_unknown(journey.unknown, width)


def list_measured(journey: Journey) -> list[str]:
    """What metrics tell, in sentences."""
    return [
        *(
            f"{each.node} has mounted it: {format_bytes(each.used)} of {format_bytes(each.capacity)} are used"
            for each in journey.usage
        ),
        *(
            f"{each.method} on {each.node} takes {format_milliseconds(each.seconds)} on average of"
            f" {each.count} {'call' if each.count == 1 else 'calls'} for all volumes of the driver"
            f"{f', {each.failed} failed' if each.failed else ''}"
            for each in journey.calls
        ),
    ]


def format_bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def _facts(journey: Journey) -> Iterator[str]:
    for name, values in (
        ("volume", journey.volumes),
        ("disk", journey.disks),
        ("nodes", journey.nodes),
        ("pods", journey.pods),
        ("trace", (journey.trace,)),
    ):
        if values:
            yield f"  {name:<7} {', '.join(values)}"


def step_table(steps: Sequence[JourneyStep], began: datetime | None, width: int) -> Iterator[str]:
    if not steps or began is None:
        yield "  no step is recorded"
        return
    is_exact = any(step.source is StepSource.SPAN for step in steps)
    head = (
        ("SINCE START", "TOOK", "COMPONENT", "STEP")
        if is_exact
        else ("TIME", "COMPONENT", "STEP", "KNOWN BY")
    )
    rows = [_exact_row(step, began) if is_exact else _derived_row(step) for step in steps]
    lines = align([head, *rows])
    yield f"  {lines[0]}"
    for step, line in zip(steps, lines[1:], strict=True):
        yield f"  {line}"[:width].rstrip()
        if problem := " ".join(filter(None, (MARKS[step.outcome], step.error))):
            yield f"{PROBLEM}{problem}"


def _exact_row(step: JourneyStep, began: datetime) -> tuple[str, ...]:
    since = format_milliseconds((step.at - began).total_seconds())
    took = "…" if step.seconds is None else format_milliseconds(step.seconds) if step.seconds else "·"
    return since.rjust(11), took.rjust(10), step.component, "  " * step.depth + _describe(step)


def _derived_row(step: JourneyStep) -> tuple[str, ...]:
    return f"{step.at:%H:%M:%S}", step.component, _describe(step), step.source


def _describe(step: JourneyStep) -> str:
    parts = [step.what, shorten_subject(step.subject)]
    if step.node and not step.subject.startswith("node/"):
        parts.append(f"on {step.node}")
    if step.component == "apiserver" and step.what in ("patch", "update"):
        shown = [f"{_shorten_field(c.field)}={c.after or '-'}" for c in step.changes[:SHOWN_CHANGES]]
        more = len(step.changes) - len(shown)
        parts.append(", ".join(shown) + (f" and {more} more" if more else ""))
    parts += [step.details[name] for name in SHOWN_DETAILS if name in step.details and not step.error]
    if step.attempt > 1:
        parts.append(f"(attempt {step.attempt})")
    return "  ".join(filter(None, parts))


def format_milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 100 else f"{seconds:.1f} s"


def shorten_subject(subject: str) -> str:
    return subject if len(subject) <= LONGEST_SUBJECT else f"{subject[:16]}…{subject[-8:]}"


# --- states


def render_history(history: StateHistory, width: int = 100) -> Iterator[str]:
    yield f"{history.subject or 'states'}: {len(history.transitions)} transitions"
    if history.transitions:
        began = history.transitions[0].at
        yield f"  first at {began:%Y-%m-%d %H:%M:%S} UTC"
        yield ""
        head = ("TIME", "OBJECT", "FIELD", "BEFORE", "EVENT", "AFTER")
        for line in align([head, *(_transition_row(each, began) for each in history.transitions)]):
            yield f"  {line}"
    yield from list_unknown(history.unknown, width)


def _transition_row(each: Transition, began: datetime) -> tuple[str, ...]:
    since = each.at - began
    when = f"+{since.total_seconds():.3f}s" if since.total_seconds() < 100 else f"+{format_duration(since)}"
    values = (shorten_subject(value) or "-" for value in (each.before, each.event, each.after))
    return (when, shorten_subject(each.subject), _shorten_field(each.field), *values)


def _shorten_field(name: str) -> str:
    field, _, inner = name.partition("[")
    return f"{field}[{shorten_subject(inner.removesuffix(']'))}]" if inner else field
