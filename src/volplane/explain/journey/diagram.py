"""The sequence diagram of a journey: a column per lane, a row per step, and a bar for the time it took.

A row is drawn alone, with positions in percent of its width, so that a page can add rows as steps happen, and
a picture is rows below each other. Colours are those of `diagram.css`, for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files

from volplane.base.markup import Markup, join, tag, words
from volplane.explain.journey.model import JourneyStep, Lane, StepOutcome
from volplane.explain.journey.render_text import format_milliseconds, shorten_subject
from volplane.explain.journey.time_axis import TimeAxis

ROW, HEAD, LANE, BARS, SINCE, TOOK = 28, 46, 84, 280, 74, 78  # pixels
NARROWEST_BAR = 0.004  # of the line
MARKERS = ("ok", "bad", "open")
STATES = {
    StepOutcome.OK: "ok",
    StepOutcome.FAILED: "bad",
    StepOutcome.CUT_OFF: "bad",
    StepOutcome.IN_PROGRESS: "open",
}


def read_style() -> str:
    return (files("volplane.explain.journey") / "diagram.css").read_text()


def draw_markers() -> Markup:
    """The heads of the arrows; once in a document."""
    heads = (
        tag(
            "marker",
            tag("path", d="M0 0 9 4.5 0 9z"),
            id=f"head-{name}",
            class_=f"head-{name}",
            markerWidth=9,
            markerHeight=9,
            refX=8.5,
            refY=4.5,
            orient="auto",
            markerUnits="userSpaceOnUse",
        )
        for name in MARKERS
    )
    return tag("defs", *heads)


class DiagramColumns:
    """The lanes that take part, and where they stand."""

    def __init__(self, steps: Iterable[JourneyStep], always: Iterable[Lane] = ()) -> None:
        used = {lane for step in steps for lane in (step.lane, step.to)} | set(always)
        self.lanes = tuple(lane for lane in Lane if lane in used)

    def locate(self, lane: Lane) -> float:
        """The middle of a lane, in percent."""
        return round(100 * (self.lanes.index(lane) + 0.5) / len(self.lanes), 2)

    def draw_head(self) -> Markup:
        """The names of the lanes, of two words on two lines."""
        return join(*(self._name(lane) for lane in self.lanes))

    def _name(self, lane: Lane) -> Markup:
        x = f"{self.locate(lane)}%"
        parts = lane.replace("/", "/ ").split(" ") if len(lane) > 10 else [lane]
        lines = [
            tag("tspan", part, x=x, y=HEAD - 14 * (len(parts) - number) - 4)
            for number, part in enumerate(parts, 0)
        ]
        return tag("text", *lines, class_="lane-name")

    def draw_row(self, step: JourneyStep) -> Markup:
        """Lifelines and the arrow of one step."""
        lines = [
            tag("line", x1=f"{self.locate(lane)}%", x2=f"{self.locate(lane)}%", y2=ROW, class_="lifeline")
            for lane in self.lanes
        ]
        return join(*lines, self._draw_arrow(step))

    def _draw_arrow(self, step: JourneyStep) -> Markup:
        state = STATES[step.outcome]
        start, end = self.locate(step.lane), self.locate(step.to)
        label = describe_arrow(step)
        y = ROW - 8
        if start == end:
            dot = tag("circle", cx=f"{start}%", cy=y - 4, r=4, class_="own")
            is_right = start > 75
            text = tag(
                "text",
                label,
                x=f"{start}%",
                dx=-9 if is_right else 9,
                y=y,
                text_anchor="end" if is_right else None,
                class_="label",
            )
            return tag("g", text, dot, class_=f"arrow {state}")
        # The tip ends at the lifeline, the label stands above the middle.
        line = tag(
            "line", x1=f"{start}%", x2=f"{end}%", y1=y, y2=y, class_="shaft", marker_end=f"url(#head-{state})"
        )
        middle = min(max((start + end) / 2, 8.0), 92.0)
        text = tag("text", label, x=f"{middle:.2f}%", y=y - 5, text_anchor="middle", class_="label")
        return tag("g", text, line, class_=f"arrow {state}")


def describe_arrow(step: JourneyStep) -> str:
    """The text at an arrow: the call, or what a write did to which kind of object."""
    if step.component == "apiserver":
        kind = step.subject.partition("/")[0]
        return f"{kind} {done}" if (done := describe_write(step)) else f"{step.what} {kind}"
    return step.what


def describe_write(step: JourneyStep) -> str:
    """The change for which an object was written again; "" for its creation, or if none is known."""
    for change in step.changes:
        field, _, item = change.field.partition("[")
        match field:
            case "exists":
                return "" if change.after else "removed"
            case "status.phase":
                return change.after
            case "status.attached":
                return "attached" if change.after else "not attached"
            case "metadata.deletionTimestamp":
                return ""  # the verb says it
            case "metadata.finalizers" if any(each.field == "exists" for each in step.changes):
                continue
            case "metadata.annotations" | "status.conditions":
                return item.removesuffix("]")
            case _:
                return field.rpartition(".")[2]
    return ""


def draw_bar(step: JourneyStep, axis: TimeAxis, height: int = ROW) -> Markup:
    """When a step was taken, and the gaps of the time line."""
    begin, end = axis.locate(step.at), axis.locate(step.end)
    x, width = 100 * min(begin, 1 - NARROWEST_BAR), 100 * max(end - begin, NARROWEST_BAR)
    thickness = 5 if step.depth or height < ROW else 9
    gaps = [
        tag("line", x1=f"{100 * at:.2f}%", x2=f"{100 * at:.2f}%", y2=height, class_="gap")
        for at, _ in axis.gaps
    ]
    bar = tag(
        "rect",
        x=f"{x:.2f}%",
        width=f"{min(width, 100 - x):.2f}%",
        y=(height - thickness) / 2,
        height=thickness,
        rx=2,
        class_=words("bar", f"phase-{step.phase}", STATES[step.outcome]),
    )
    return join(*gaps, bar)


def draw_ticks(axis: TimeAxis) -> Markup:
    """Round times at the head of the bars."""
    return join(
        *(
            tag(
                "text",
                _format_tick(seconds),
                x=f"{100 * at:.2f}%",
                y=HEAD - 8,
                text_anchor="middle",
                class_="tick",
            )
            for at, seconds in axis.list_ticks()
            if at < 0.97
        )
    )


def _format_tick(seconds: float) -> str:
    return f"{1000 * seconds:g} ms" if seconds < 1 else f"{seconds:g} s"


def make_axis(steps: Iterable[JourneyStep]) -> TimeAxis:
    return TimeAxis.over((step.at, step.end) for step in steps)


def render_svg(steps: Sequence[JourneyStep], title: str) -> Markup:
    """A picture that needs nothing else: lanes, rows and bars, with its own style."""
    columns, axis = DiagramColumns(steps), make_axis(steps)
    lanes = LANE * len(columns.lanes)
    width = SINCE + lanes + BARS + TOOK
    height = HEAD + ROW * len(steps) + 12
    rows = [
        _draw_whole_row(step, number, columns, axis, steps[0], lanes) for number, step in enumerate(steps)
    ]
    return tag(
        "svg",
        tag("title", title),
        tag("style", Markup(read_style())),
        draw_markers(),
        tag("rect", width="100%", height="100%", class_="sheet"),
        tag("svg", columns.draw_head(), x=SINCE, width=lanes, height=HEAD),
        tag("svg", draw_ticks(axis), x=SINCE + lanes, width=BARS, height=HEAD),
        *rows,
        xmlns="http://www.w3.org/2000/svg",
        class_="journey-diagram",
        role="img",
        aria_label=title,
        width=width,
        height=height,
        viewBox=f"0 0 {width} {height}",
    )


def _draw_whole_row(
    step: JourneyStep, number: int, columns: DiagramColumns, axis: TimeAxis, first: JourneyStep, lanes: int
) -> Markup:
    y = HEAD + ROW * number
    since = format_milliseconds((step.at - first.at).total_seconds())
    took = format_milliseconds(step.seconds) if step.seconds else ""
    tip = f"{step.component}: {step.what} {step.subject} {step.error}".strip()
    return tag(
        "g",
        tag("title", tip),
        tag("text", since, x=SINCE - 12, y=ROW - 9, text_anchor="end", class_="since"),
        tag("svg", columns.draw_row(step), x=SINCE, width=lanes, height=ROW, overflow="visible"),
        tag("svg", draw_bar(step, axis), x=SINCE + lanes, width=BARS, height=ROW),
        tag("text", took, x=SINCE + lanes + BARS + TOOK - 10, y=ROW - 9, text_anchor="end", class_="since"),
        transform=f"translate(0 {y})",
    )


def describe_step(step: JourneyStep) -> str:
    """One line for a reader who does not see the diagram."""
    by = step.lane if step.component == "apiserver" else step.component
    who = by if step.lane == step.to else f"{by} to {step.to}"
    where = f" on {step.node}" if step.node and not step.subject.startswith("node/") else ""
    tried = f", attempt {step.attempt}" if step.attempt > 1 else ""
    outcome = f", {step.outcome}" if step.outcome is not StepOutcome.OK else ""
    change = describe_write(step) if step.component == "apiserver" and step.what != "create" else ""
    done = f" ({change})" if change else ""
    return f"{who}: {step.what} {shorten_subject(step.subject)}{done}{where}{tried}{outcome}"
