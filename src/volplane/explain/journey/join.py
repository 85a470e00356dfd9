"""Spans become journeys: pure, and independent of the process in which a span was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import structs

from volplane.base.span_store import StoredSpan
from volplane.base.trace import Span
from volplane.explain.journey.lanes import (
    lane_of,
    lane_of_user,
    phase_of,
    phase_of_removal,
    phase_of_write,
    target_of,
)
from volplane.explain.journey.model import (
    Journey,
    JourneyOutcome,
    JourneyStep,
    Lane,
    Phase,
    StateChange,
    StepOutcome,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OWN_ATTRS = frozenset({"changes", "uid", "node"})  # they have fields of their own in a step
DEEPEST = 8  # steps within steps


def find_traces(spans: Iterable[StoredSpan], subject: str) -> list[str]:
    """The traces of an object (`pvc/default/data`), the newest last: names are used again."""
    found: dict[str, int] = {}
    for stored in spans:
        if stored.span.subject == subject:
            for trace in stored.span.traces:
                found[trace] = max(found.get(trace, 0), stored.span.start)
    return sorted(found, key=lambda trace: found[trace])


def complete_traces(spans: Sequence[StoredSpan]) -> list[StoredSpan]:
    """With the traces of spans whose process did not know them, as after a restart: those that other spans of
    the same subject have.
    """
    known: dict[str, tuple[str, ...]] = {}
    for stored in spans:
        if stored.span.traces and stored.span.subject:
            known.setdefault(stored.span.subject, stored.span.traces)
    found = []
    for stored in spans:
        span = stored.span
        if not span.traces and (traces := known.get(span.subject)):
            stored = structs.replace(stored, span=structs.replace(span, traces=traces))
        found.append(stored)
    return found


def join_journey(spans: Iterable[StoredSpan], trace: str) -> Journey:
    """The journey of one trace. `spans`: all that are known; those of other claims are left out."""
    own = sorted((s for s in spans if trace in s.span.traces), key=lambda s: s.span.start)
    steps = tuple(_join_steps(own))
    subject = _find_subject(own)
    return Journey(
        subject=subject,
        uid=_format_uid(trace),
        trace=trace,
        outcome=judge_outcome(steps),
        began=steps[0].at if steps else None,
        ended=max((step.end for step in steps), default=None),
        volumes=_list_names(own, "pv/"),
        attachments=_list_names(own, "va/"),
        pods=_list_names(own, "pod/"),
        disks=_list_names(own, "volume/", but_not=frozenset(_list_names(own, "pv/"))),
        nodes=_list_nodes(steps),
        steps=steps,
    )


def _join_steps(spans: Sequence[StoredSpan]) -> Iterable[JourneyStep]:
    by_id = {stored.span.id: stored.span for stored in spans if stored.span.id}
    attempts: dict[tuple[str, str, str], int] = {}
    for stored in spans:
        span = stored.span
        parents = _parents(span, by_id)
        key = (span.component, span.step, span.subject)
        attempts[key] = attempts.get(key, 0) + 1
        lane, target = _arrow(span, parents)
        yield JourneyStep(
            at=to_datetime(span.start),
            seconds=(span.end - span.start) / 1e9 if span.end else None,
            lane=lane,
            to=target,
            component=span.component,
            what=span.step,
            subject=span.subject,
            phase=_phase(span, parents),
            outcome=_step_outcome(stored),
            error=span.error,
            node=_node(span, parents, stored.role),
            attempt=attempts[key],
            id=span.id,
            parent=span.parent if span.parent in by_id else "",
            depth=len(parents),
            details={name: str(value) for name, value in span.attrs.items() if name not in OWN_ATTRS},
            changes=read_changes(span),
        )


def _parents(span: Span, by_id: Mapping[str, Span]) -> list[Span]:
    found: list[Span] = []
    while (parent := by_id.get(span.parent)) is not None and len(found) < DEEPEST:
        found.append(parent)
        span = parent
    return found


def _arrow(span: Span, parents: Sequence[Span]) -> tuple[Lane, Lane]:
    if span.component == "apiserver" and not any(p.component != "apiserver" for p in parents):
        user, manager = (str(span.attrs.get(name, "")) for name in ("user", "manager"))
        return lane_of_user(user, manager, read_changes(span)), Lane.APISERVER
    if span.component == "host" and parents:
        around = lane_of(parents[0])
        return around, around
    return lane_of(span), target_of(span)


def _phase(span: Span, parents: Sequence[Span]) -> Phase:
    if span.component == "apiserver" and (removal := phase_of_removal(span.subject, read_changes(span))):
        return removal  # whatever was done around it: any component may remove the last finalizer
    for each in (span, *parents):
        if (found := phase_of(each)) is not None:
            return found
    if span.component != "apiserver":
        return Phase.OTHER
    return phase_of_write(span.subject.partition("/")[0], span.step, read_changes(span))


def _step_outcome(stored: StoredSpan) -> StepOutcome:
    if not stored.span.end:
        return StepOutcome.CUT_OFF if stored.is_cut_off else StepOutcome.IN_PROGRESS
    return StepOutcome.FAILED if stored.span.error else StepOutcome.OK


def _node(span: Span, parents: Sequence[Span], role: str) -> str:
    given = next((str(s.attrs["node"]) for s in (span, *parents) if "node" in s.attrs), "")
    kind, _, name = span.subject.partition("/")
    return given or (name if kind == "node" else "")


def read_changes(span: Span) -> tuple[StateChange, ...]:
    """The changes of state that the API server has recorded with a write."""
    found: Any = span.attrs.get("changes", ())
    if not isinstance(found, list | tuple):  # a line of a file that was damaged
        return ()
    changes = (change for change in found if isinstance(change, list | tuple) and len(change) == 3)
    return tuple(StateChange(*map(str, change)) for change in changes)


def judge_outcome(steps: Sequence[JourneyStep]) -> JourneyOutcome:
    """How far the volume has come, by the last step that succeeded."""
    outcome, running = JourneyOutcome.PENDING, set[str]()
    is_removed = False  # the claim; its volume may still be unmounted
    for step in sorted((s for s in steps if s.outcome is StepOutcome.OK), key=lambda s: s.end):
        match step.phase, step.what:
            case Phase.START, _:
                running.add(step.subject)
                outcome = JourneyOutcome.IN_USE
            case Phase.STOP, _:
                running.discard(step.subject)
                outcome = JourneyOutcome.IN_USE if running else JourneyOutcome.RELEASED
            case Phase.BIND, _ if outcome is JourneyOutcome.PENDING and _binds_claim(step):
                outcome = JourneyOutcome.PROVISIONED
            case ((Phase.ATTACH | Phase.STAGE | Phase.PUBLISH), _) if not running:
                outcome = JourneyOutcome.MOVING
            case ((Phase.UNPUBLISH | Phase.UNSTAGE | Phase.DETACH), _) if not running:
                outcome = JourneyOutcome.RELEASED
            case Phase.DELETE, "DeleteVolume":
                outcome = JourneyOutcome.DELETED
            case Phase.DELETE, _ if _removes_claim(step):
                is_removed = True
    return JourneyOutcome.DELETED if is_removed and not running else outcome


def _binds_claim(step: JourneyStep) -> bool:
    return step.what == "claim Bound" or any(
        c.field == "status.phase" and c.after == "Bound" for c in step.changes
    )


def _removes_claim(step: JourneyStep) -> bool:
    return step.subject.startswith("pvc/") and any(c.field == "exists" and not c.after for c in step.changes)


def _find_subject(spans: Sequence[StoredSpan]) -> str:
    subjects = [stored.span.subject for stored in spans]
    for prefix in ("pvc/", "pod/", "pv/", ""):
        if found := next((subject for subject in subjects if subject.startswith(prefix)), ""):
            return found
    return ""


def _list_names(
    spans: Sequence[StoredSpan], prefix: str, *, but_not: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    names = (s.span.subject.removeprefix(prefix) for s in spans if s.span.subject.startswith(prefix))
    return tuple(dict.fromkeys(name for name in names if name and name not in but_not))


def _list_nodes(steps: Iterable[JourneyStep]) -> tuple[str, ...]:
    found: list[str] = []
    for step in steps:
        if (
            step.node
            and step.phase in (Phase.ATTACH, Phase.STAGE, Phase.PUBLISH)
            and step.node not in found[-1:]
        ):
            found.append(step.node)
    return tuple(found)


def to_datetime(nanoseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=nanoseconds // 1000)


def _format_uid(trace: str) -> str:
    return "-".join((trace[:8], trace[8:12], trace[12:16], trace[16:20], trace[20:]))
