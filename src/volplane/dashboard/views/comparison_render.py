"""Two journeys side by side: each step once, with when and how long in both."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import structs

from volplane.base.markup import Content, Markup, tag, words
from volplane.dashboard.fragments import ROOT, Fragments
from volplane.dashboard.page_request import PageRequest
from volplane.dashboard.pieces import choice, object_link
from volplane.dashboard.views.step_choice import LEVELS, choose_steps
from volplane.explain.journey.comparison import StepPair, pair_steps
from volplane.explain.journey.diagram import (
    HEAD,
    ROW,
    DiagramColumns,
    describe_step,
    draw_bar,
    draw_markers,
    draw_ticks,
)
from volplane.explain.journey.model import Journey, JourneyStep
from volplane.explain.journey.render_text import format_milliseconds
from volplane.explain.journey.time_axis import TimeAxis

NOTABLE = 0.002  # seconds of a difference that are shown
MOST = 300  # steps


def render(page: PageRequest, journey: Journey, other: Journey) -> Fragments:
    every = [choose_steps(page, each).all for each in (journey, other)]
    first, second = (_begin_at_zero(steps[:MOST]) for steps in every)
    pairs = pair_steps(first, second)
    columns = DiagramColumns([pair.step for pair in pairs])
    axis = TimeAxis.over((step.at, step.end) for step in (*first, *second))
    rows = [_row(pair, columns, axis) for pair in pairs]
    return {
        ROOT: tag(
            "div",
            _head(page, (journey, other), (first, second), [len(steps) for steps in every]),
            _diagram_head(columns, axis, journey, other),
            tag("ol", *rows, class_="steps compared journey-diagram", aria_label="Steps of both journeys"),
            id=ROOT,
            class_="journey-view",
        )
    }


def _begin_at_zero(steps: Sequence[JourneyStep]) -> list[JourneyStep]:
    """The steps as if the journey had begun at a fixed time, so that two of them have one axis."""
    if not steps:
        return []
    earlier = steps[0].at - datetime(2000, 1, 1, tzinfo=steps[0].at.tzinfo)
    return [structs.replace(step, at=step.at - earlier) for step in steps]


def _head(
    page: PageRequest,
    journeys: tuple[Journey, Journey],
    shown: tuple[Sequence[JourneyStep], Sequence[JourneyStep]],
    totals: Sequence[int],
) -> Markup:
    """`totals`: how many steps each has; the last ones of a long journey are not shown."""
    rows = [
        tag(
            "tr",
            tag("th", name, " ", object_link(page, each.subject), scope="row"),
            tag("td", each.outcome),
            tag("td", format_milliseconds(_total(steps)), class_="number"),
            tag("td", _count_steps(len(steps), total), class_="number"),
            class_=f"side-{name.lower()}",
        )
        for name, each, steps, total in zip("AB", journeys, shown, totals, strict=True)
    ]
    tools = tag(
        "div",
        choice(page, "level", LEVELS, page.parameter("level"), "Level of detail"),
        tag("a", "End the comparison", href=page.link(**{"with": None}), data_show=True),
        class_="tools",
    )
    return tag(
        "div",
        tag("div", tag("h1", "Two journeys"), tag("table", tag("tbody", *rows), class_="sides")),
        tools,
        class_="page-head",
    )


def _count_steps(shown: int, total: int) -> str:
    return f"{shown} steps" if shown == total else f"the first {shown} of {total} steps"


def _total(steps: Sequence[JourneyStep]) -> float:
    if not steps:
        return 0.0
    took: timedelta = max(step.end for step in steps) - steps[0].at
    return took.total_seconds()


def _diagram_head(columns: DiagramColumns, axis: TimeAxis, journey: Journey, other: Journey) -> Markup:
    return tag(
        "div",
        tag("svg", draw_markers(), width=0, height=0, class_="markers"),
        tag("svg", columns.draw_head(), height=HEAD, class_="lanes"),
        tag("svg", draw_ticks(axis), height=HEAD, class_="bars"),
        tag("span", "A", class_="took", title=journey.subject),
        tag("span", "B", class_="took", title=other.subject),
        tag("span", "B minus A", class_="took"),
        class_="step-head compared journey-diagram",
        aria_hidden="true",
    )


def _row(pair: StepPair, columns: DiagramColumns, axis: TimeAxis) -> Markup:
    bars = [
        tag(
            "svg",
            draw_bar(step, axis, ROW // 2) if step else None,
            height=ROW // 2,
            class_="bars",
            aria_hidden="true",
        )
        for step in (pair.first, pair.second)
    ]
    slower = pair.slower
    difference: Content = ""
    if slower is not None and abs(slower) >= NOTABLE:
        text = format_milliseconds(abs(slower))
        difference = tag(
            "span", f"{'+' if slower > 0 else '-'}{text}", class_="slower" if slower > 0 else "faster"
        )
    return tag(
        "li",
        tag(
            "div",
            tag("svg", columns.draw_row(pair.step), height=ROW, class_="lanes", aria_hidden="true"),
            tag("span", describe_step(pair.step), class_="spoken"),
            tag("span", *bars, class_="both"),
            tag("span", _took(pair.first), class_="took"),
            tag("span", _took(pair.second), class_="took"),
            tag("span", difference, class_="took"),
            class_="row",
        ),
        class_=words(
            "step", f"edge-{pair.step.phase}", (pair.first is None or pair.second is None) and "single"
        ),
    )


def _took(step: JourneyStep | None) -> str:
    if step is None:
        return "-"
    return format_milliseconds(step.seconds) if step.seconds else "·"
