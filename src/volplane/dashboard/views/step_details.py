"""What one step of a journey was: request and reply, the object's changes, the log lines of that moment."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from volplane.base.markup import Content, Markup, tag
from volplane.dashboard.log_lines import LogLine, LogReader
from volplane.dashboard.page_request import PageRequest
from volplane.dashboard.pieces import Tone, badge, object_link
from volplane.explain.journey.model import Journey, JourneyStep, StepOutcome, StepSource
from volplane.explain.journey.render_text import format_milliseconds

TAG_AFTER_TAG = re.compile(r">\s*<")
BODIES = {"request": "Request", "reply": "Answer"}
TONES = {
    StepOutcome.OK: Tone.GOOD,
    StepOutcome.FAILED: Tone.BAD,
    StepOutcome.IN_PROGRESS: Tone.BUSY,
    StepOutcome.CUT_OFF: Tone.WARN,
}


async def find_log_lines(logs: LogReader, journey: Journey, step: JourneyStep) -> Sequence[LogLine]:
    """Lines from the time of the step that mention an object of the journey."""
    return await logs.find(step.at, step.end, list(_names(journey, step)))


def _names(journey: Journey, step: JourneyStep) -> Iterable[str]:
    subject = step.subject.rpartition("/")[2]
    claim = journey.subject.rpartition("/")[2]
    yield from filter(None, (subject, claim, *journey.volumes, *journey.disks, *journey.attachments))
    yield from (pod.rpartition("/")[2] for pod in journey.pods)


def render_details(
    page: PageRequest, journey: Journey, step: JourneyStep, lines: Collection[LogLine]
) -> Markup:
    inner = [other for other in journey.steps if other.parent == step.id]
    return tag(
        "div",
        tag(
            "div",
            _facts(page, step),
            step.error and tag("p", step.error, class_="error"),
            _changes(step) if step.changes else None,
            _inner_steps(page, inner) if inner else None,
            _rest(step),
            class_="details-facts",
        ),
        tag("div", *_bodies(step), _log(lines), class_="details-bodies"),
        class_="step-details",
    )


def _facts(page: PageRequest, step: JourneyStep) -> Markup:
    how = "" if step.source is StepSource.SPAN else f"known by {step.source}"
    facts: list[tuple[str, Content]] = [
        ("Outcome", badge(TONES[step.outcome], step.outcome)),
        ("Component", f"{step.component} → {step.to}" if step.lane != step.to else step.component),
        ("Object", object_link(page, step.subject)),
        ("Node", step.node),
        ("At", f"{step.at:%H:%M:%S.%f} UTC"),
        ("Took", "not known" if step.seconds is None else format_milliseconds(step.seconds)),
        ("Attempt", str(step.attempt) if step.attempt > 1 else ""),
        ("Source", how),
    ]
    rows = [(tag("dt", name), tag("dd", value)) for name, value in facts if value]
    return tag("dl", *rows, class_="facts")


def _changes(step: JourneyStep) -> Markup:
    rows = [
        tag(
            "tr",
            tag("th", change.field, scope="row"),
            tag("td", change.before and tag("del", change.before)),
            tag("td", change.after and tag("ins", change.after)),
        )
        for change in step.changes
    ]
    head = tag("tr", *(tag("th", name, scope="col") for name in ("Field", "Before", "After")))
    return tag(
        "table",
        tag("caption", "Changes of the object"),
        tag("thead", head),
        tag("tbody", *rows),
        class_="changes",
    )


def _inner_steps(page: PageRequest, steps: Sequence[JourneyStep]) -> Markup:
    items = [
        tag(
            "li",
            tag(
                "a",
                f"{step.component}: {step.what}",
                href=page.link(step=step.id, level="calls"),
                data_show=True,
            ),
            f" {format_milliseconds(step.seconds)}" if step.seconds else "",
        )
        for step in steps
    ]
    return tag("div", tag("h4", "Within it"), tag("ul", *items, class_="inner"))


def _rest(step: JourneyStep) -> Markup | None:
    rest = {name: value for name, value in step.details.items() if name not in BODIES}
    if not rest:
        return None
    return tag(
        "dl", *((tag("dt", name), tag("dd", value)) for name, value in rest.items()), class_="facts rest"
    )


def _bodies(step: JourneyStep) -> Iterable[Markup]:
    for name, title in BODIES.items():
        if name in step.details:
            yield tag("h4", title)
            yield tag("pre", _indent(step.details[name]), tabindex=0)


def _indent(text: str) -> str:
    """JSON and XML on several lines; anything else as it is."""
    if text.startswith("<?xml"):
        return "\n".join(_indent_xml(text))
    try:
        return msgspec.json.format(text, indent=2)
    except msgspec.DecodeError:
        return text


def _indent_xml(text: str) -> Iterator[str]:
    """One element a line. The text may be cut, so that it is no document any more."""
    depth = 0
    for line in TAG_AFTER_TAG.sub(">\n<", text).splitlines():
        is_end = line.startswith("</")
        depth = max(depth - is_end, 0)
        yield "  " * depth + line
        if line.startswith("<") and not line.startswith(("</", "<?")) and "</" not in line[1:]:
            depth += not line.endswith("/>")


def _log(lines: Collection[LogLine]) -> list[Markup]:
    if not lines:
        return []
    text = "\n".join(
        f"{line.at:%H:%M:%S.%f} {line.role + ' ' if line.role else ''}{line.text}" for line in lines
    )
    return [tag("h4", "Log"), tag("pre", text, tabindex=0, class_="log")]
