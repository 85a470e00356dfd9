"""A journey as one HTML file without scripts: the sequence diagram, and a table of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files

from volplane.base.markup import Content, Markup, join, tag
from volplane.explain.journey.diagram import read_style, render_svg
from volplane.explain.journey.model import Journey, JourneyStep, StepOutcome
from volplane.explain.journey.render_text import format_milliseconds, list_measured, shorten_subject

HEADS = ("since start", "took", "component", "step", "object", "outcome")
SHOWN_DETAILS = ("request", "reply")


def render_html(journeys: Sequence[Journey], shown: Sequence[Sequence[JourneyStep]]) -> Iterator[str]:
    """Its lines. `shown`: the steps to show of each journey."""
    title = f"Journey of {', '.join(journey.subject for journey in journeys)}"
    yield "<!doctype html>"
    yield '<html lang="en">'
    yield tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(_read_page_style())),
    )
    yield "<body>"
    for journey, steps in zip(journeys, shown, strict=True):
        yield from _render_journey(journey, steps)
    yield "</body>"
    yield "</html>"


def _render_journey(journey: Journey, steps: Sequence[JourneyStep]) -> Iterator[str]:
    yield tag("h1", f"{journey.subject}: {journey.outcome}")
    yield tag("div", render_svg(steps, f"Sequence diagram of {journey.subject}"), class_="diagram")
    yield _table(steps)
    if measured := list_measured(journey):
        yield join(tag("h2", "Measured by the kubelet"), tag("ul", *(tag("li", line) for line in measured)))
    if journey.unknown:
        yield join(tag("h2", "Not known"), tag("ul", *(tag("li", line) for line in journey.unknown)))


def _table(steps: Sequence[JourneyStep]) -> Markup:
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in HEADS)))
    return tag("table", head, tag("tbody", *(_row(step, steps[0]) for step in steps)))


def _row(step: JourneyStep, first: JourneyStep) -> Markup:
    since = format_milliseconds((step.at - first.at).total_seconds())
    details: list[Content] = [
        tag("details", tag("summary", name), tag("pre", step.details[name]))
        for name in SHOWN_DETAILS
        if name in step.details
    ]
    has_failed = step.outcome in (StepOutcome.FAILED, StepOutcome.CUT_OFF)
    return tag(
        "tr",
        tag("td", since, class_="number"),
        tag("td", format_milliseconds(step.seconds) if step.seconds else "", class_="number"),
        tag("td", step.component),
        tag("td", step.what, details),
        tag("td", shorten_subject(step.subject), title=step.subject),
        tag("td", f"{step.outcome} {step.error}".strip(), class_="failed" if has_failed else None),
    )


def _read_page_style() -> str:
    return read_style() + (files("volplane.explain.journey") / "export.css").read_text()
