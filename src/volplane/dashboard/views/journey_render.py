"""The page of one journey: a head with its facts, and a row for each step, drawn when it happens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta

from volplane.base.markup import Content, Markup, join, tag, words
from volplane.dashboard.fragments import ROOT, Fragments, slot
from volplane.dashboard.log_lines import LogLine
from volplane.dashboard.page_request import PageRequest
from volplane.dashboard.pieces import Tone, badge, choice, empty, object_link, pager, unknowns
from volplane.dashboard.views.step_choice import DIRECTIONS, LEVELS, ShownSteps
from volplane.dashboard.views.step_details import render_details
from volplane.explain.cluster_state import format_duration
from volplane.explain.journey.diagram import (
    HEAD,
    ROW,
    DiagramColumns,
    describe_step,
    draw_bar,
    draw_markers,
    draw_ticks,
    make_axis,
)
from volplane.explain.journey.model import Journey, JourneyOutcome, JourneyStep, Lane, StepOutcome, StepSource
from volplane.explain.journey.render_text import format_milliseconds
from volplane.explain.journey.time_axis import TimeAxis

UNKNOWN = "unknown"
SAVED_AS = (("svg", "SVG"), ("html", "HTML"), ("mermaid", "Mermaid"))
OUTCOMES = {
    JourneyOutcome.PENDING: Tone.BUSY,
    JourneyOutcome.PROVISIONED: Tone.IDLE,
    JourneyOutcome.MOVING: Tone.BUSY,
    JourneyOutcome.IN_USE: Tone.GOOD,
    JourneyOutcome.RELEASED: Tone.IDLE,
    JourneyOutcome.DELETED: Tone.IDLE,
}
ROWS = "steps"
# Lanes that most journeys come to have: shown from the start, so that the diagram does not shift.
USUAL_LANES = (
    Lane.USER,
    Lane.APISERVER,
    Lane.BINDER,
    Lane.SCHEDULER,
    Lane.PROVISIONER,
    Lane.DRIVER_CONTROLLER,
    Lane.CLOUD,
    Lane.ATTACH_DETACH,
    Lane.ATTACHER,
    Lane.KUBELET,
    Lane.DRIVER_NODE,
    Lane.CONTAINER,
)
UNDER_WAY = frozenset({JourneyOutcome.PENDING, JourneyOutcome.PROVISIONED, JourneyOutcome.MOVING})


class RowCache:
    """Renders journeys. A row that is as it was is not rendered again."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[object, Markup]] = {}

    def render(
        self,
        page: PageRequest,
        journey: Journey,
        shown: ShownSteps,
        chosen: JourneyStep | None,
        lines: Collection[LogLine],
        traces: Mapping[str, str],
    ) -> Fragments:
        steps = shown.on_page
        usual = USUAL_LANES if journey.outcome in UNDER_WAY and _is_recorded(steps) else ()
        columns, axis = DiagramColumns(steps, usual), make_axis(steps)
        before, self._rows = self._rows, {}
        first = shown.all[0] if shown.all else None
        previous: JourneyStep | None = None
        for number, step in enumerate(steps):
            assert first is not None
            id = row_id(step, number)
            is_new_phase = previous is None or previous.phase is not step.phase
            details = render_details(page, journey, step, lines) if step is chosen else None
            state = (step, columns.lanes, axis, is_new_phase, details, page)
            known = before.get(id)
            if known is None or known[0] != state:
                known = state, _row(page, id, step, first, columns, axis, is_new_phase, details)
            self._rows[id] = known
            previous = step
        fragments = {id: markup for id, (_, markup) in self._rows.items()}
        return {
            ROOT: _frame(page, journey, shown, columns, axis, fragments),
            "journey-head": _head(page, journey, shown, traces),
            UNKNOWN: unknowns(journey.unknown, UNKNOWN, "Not known"),
            **fragments,
        }


def row_id(step: JourneyStep, number: int) -> str:
    return f"step-{step.id or number}"


def render_missing(page: PageRequest, subject: str) -> Fragments:
    text = (
        "It is shown as soon as it is created. Journeys of deleted objects are shown if they were recorded."
    )
    return {
        ROOT: tag("div", tag("h1", f"There is no {subject}"), empty(text), id=ROOT, class_="journey-view")
    }


def _is_recorded(steps: Iterable[JourneyStep]) -> bool:
    return all(step.source is StepSource.SPAN for step in steps)


def _frame(
    page: PageRequest,
    journey: Journey,
    shown: ShownSteps,
    columns: DiagramColumns,
    axis: TimeAxis,
    rows: Iterable[str],
) -> Markup:
    items = [slot(id) for id in rows]
    return tag(
        "div",
        slot("journey-head"),
        pager(page, shown.part, len(shown.all), "steps"),
        _diagram_head(columns, axis) if items else None,
        tag("ol", *items, class_="steps journey-diagram", aria_label=f"Steps of {journey.subject}")
        if items
        else empty("No step is known for this part of the journey."),
        slot(UNKNOWN),
        id=ROOT,
        class_="journey-view",
    )


def _diagram_head(columns: DiagramColumns, axis: TimeAxis) -> Markup:
    markers = tag("svg", draw_markers(), width=0, height=0, class_="markers")
    return tag(
        "div",
        markers,
        tag("span", "since start", class_="since"),
        tag("svg", columns.draw_head(), height=HEAD, class_="lanes"),
        tag("svg", draw_ticks(axis), height=HEAD, class_="bars"),
        tag("span", "took", class_="took"),
        class_="step-head journey-diagram",
        aria_hidden="true",
    )


def _head(page: PageRequest, journey: Journey, shown: ShownSteps, traces: Mapping[str, str]) -> Markup:
    total = (shown.all[-1].end - shown.all[0].at).total_seconds() if shown.all else 0.0
    failed = sum(step.outcome in (StepOutcome.FAILED, StepOutcome.CUT_OFF) for step in shown.all)
    facts: list[tuple[str, Content]] = [
        ("Volume", [object_link(page, f"pv/{name}") for name in journey.volumes]),
        ("Disk", ", ".join(journey.disks)),
        ("Pod", [*_earlier(journey.pods, 3), *(object_link(page, f"pod/{n}") for n in journey.pods[-3:])]),
        ("Node", " → ".join([*_earlier(journey.nodes, 4), *journey.nodes[-4:]])),
        ("Took", format_milliseconds(total) if total < 100 else format_duration(timedelta(seconds=total))),
        ("Steps", f"{len(shown.all)}" + (f", {failed} failed" if failed else "")),
        ("Trace", tag("code", journey.trace)),
    ]
    save = [tag("a", text, href=page.link(save=kind), download=True) for kind, text in SAVED_AS]
    tools = tag(
        "div",
        choice(page, "show", DIRECTIONS, shown.direction, "Direction"),
        choice(page, "level", LEVELS, page.parameter("level"), "Level of detail"),
        _compare_form(page),
        tag("span", "Save as ", *_separate(save), class_="save"),
        class_="tools",
    )
    return tag(
        "div",
        tag(
            "div",
            tag(
                "h1",
                object_link(page, journey.subject),
                " ",
                badge(OUTCOMES[journey.outcome], journey.outcome),
            ),
            tag(
                "dl",
                *((tag("dt", name), tag("dd", value)) for name, value in facts if value),
                class_="facts inline",
            ),
            len(traces) > 1 and _other_traces(page, journey, traces),
        ),
        tools,
        id="journey-head",
        class_="page-head",
        data_announce="Journey",
    )


def _earlier(names: Sequence[str], shown: int) -> list[str]:
    """How many names come before the last ones, which are shown."""
    return [f"{len(names) - shown} earlier "] if len(names) > shown else []


def _separate(links: Sequence[Markup]) -> Iterable[Content]:
    for number, link in enumerate(links):
        if number:
            yield " · "
        yield link


def _other_traces(page: PageRequest, journey: Journey, traces: Mapping[str, str]) -> Markup:
    """Links to the journeys of other objects: earlier ones of this name, or the pod's other claims."""
    links = [
        tag(
            "a",
            name,
            href=page.link(trace=trace, step=None, page=None),
            aria_current="true" if trace == journey.trace else None,
        )
        for trace, name in list(traces.items())[-8:]
    ]
    return tag("p", "Journeys: ", *_separate(links), class_="traces")


def _compare_form(page: PageRequest) -> Markup:
    box = tag(
        "input",
        name="with",
        placeholder="Compare with pvc/default/…",
        aria_label="Compare with another journey",
        value=page.parameter("with") or None,
        spellcheck="false",
        autocomplete="off",
    )
    return tag("form", box, class_="compare", action=page.link(show=None))


def _row(
    page: PageRequest,
    id: str,
    step: JourneyStep,
    first: JourneyStep,
    columns: DiagramColumns,
    axis: TimeAxis,
    is_new_phase: bool,
    details: Markup | None,
) -> Markup:
    since = format_milliseconds((step.at - first.at).total_seconds())
    took = "…" if step.seconds is None else format_milliseconds(step.seconds) if step.seconds else ""
    if step.source is not StepSource.SPAN:
        since, took = f"{step.at:%H:%M:%S}", ""
    address = page.link(step=None if details is not None else step.id or None)
    content = join(
        tag("span", since, class_="since"),
        tag("svg", columns.draw_row(step), height=ROW, class_="lanes", aria_hidden="true"),
        tag("span", describe_step(step), class_="spoken"),
        tag("svg", draw_bar(step, axis), height=ROW, class_="bars", aria_hidden="true"),
        tag("span", took, class_="took"),
    )
    opens = tag(
        "a",
        content,
        href=address,
        class_="row",
        data_show=True,
        aria_expanded="true" if details is not None else "false",
    )
    return tag(
        "li",
        is_new_phase and tag("span", step.phase, class_=f"phase-name text-{step.phase}"),
        opens if step.id else tag("div", content, class_="row"),
        details,
        id=id,
        class_=words("step", f"edge-{step.phase}", step.outcome is StepOutcome.FAILED and "wrong"),
    )
