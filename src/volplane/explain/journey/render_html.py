"""A journey as one HTML file without scripts: the sequence diagram as SVG, and a table of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from volplane.explain.journey.model import Journey, JourneyStep, Lane, StepOutcome
from volplane.explain.journey.render_text import format_milliseconds, shorten_subject

LANE_WIDTH, ROW_HEIGHT, MARGIN, HEAD = 130, 26, 20, 50
STYLE = """
:root { color-scheme: light dark; --line: #8886; --text: #222; --back: #fff; --bad: #b00020;
  --arrow: #0b57d0 }
@media (prefers-color-scheme: dark) {
  :root { --text: #ddd; --back: #16181c; --bad: #ff8a80; --arrow: #8ab4f8 }
}
body { font: 14px/1.4 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 1rem }
svg text { font: 12px system-ui, sans-serif; fill: var(--text) }
.lane { stroke: var(--line); stroke-dasharray: 4 3 }
.arrow { stroke: var(--arrow); stroke-width: 1.5; fill: none; marker-end: url(#head) }
.failed .arrow { stroke: var(--bad) } .failed text, td.failed { fill: var(--bad); color: var(--bad) }
.diagram { overflow-x: auto } table { border-collapse: collapse; margin-top: 1rem }
td, th { text-align: left; padding: .15rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top }
td.number { text-align: right; white-space: nowrap } pre { white-space: pre-wrap; margin: 0 }
"""


def render_html(journeys: Sequence[Journey], shown: Sequence[Sequence[JourneyStep]]) -> Iterator[str]:
    title = ", ".join(journey.subject for journey in journeys)
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<title>Journey of {escape(title)}</title><style>{STYLE}</style></head><body>"
    for journey, steps in zip(journeys, shown, strict=True):
        yield f"<h1>{escape(journey.subject)}: {escape(journey.outcome)}</h1>"
        yield f'<div class="diagram">{render_svg(steps)}</div>'
        yield from _table(steps)
        if journey.unknown:
            items = "".join(f"<li>{escape(line)}</li>" for line in journey.unknown)
            yield f"<h2>Not known</h2><ul>{items}</ul>"
    yield "</body></html>"


def render_svg(steps: Sequence[JourneyStep]) -> str:
    """The sequence diagram alone."""
    used = {step.lane for step in steps} | {step.to for step in steps}
    lanes = [lane for lane in Lane if lane in used]
    x = {lane: MARGIN + LANE_WIDTH // 2 + number * LANE_WIDTH for number, lane in enumerate(lanes)}
    width, height = 2 * MARGIN + LANE_WIDTH * len(lanes), HEAD + ROW_HEIGHT * (len(steps) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="sequence diagram" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}"><defs><marker id="head" markerWidth="8" '
        'markerHeight="8" refX="7" refY="4" orient="auto"><path d="M0,0 L8,4 L0,8 z" '
        'fill="context-stroke"/></marker></defs>'
    ]
    for lane in lanes:
        parts.append(f'<text x="{x[lane]}" y="20" text-anchor="middle">{escape(lane)}</text>')
        parts.append(f'<line class="lane" x1="{x[lane]}" x2="{x[lane]}" y1="28" y2="{height}"/>')
    parts += [_arrow(step, x, HEAD + ROW_HEIGHT * (row + 1)) for row, step in enumerate(steps)]
    return "".join(parts) + "</svg>"


def _arrow(step: JourneyStep, x: dict[Lane, int], y: int) -> str:
    start, end = x[step.lane], x[step.to]
    if start == end:
        path, at, anchor = f"M{start},{y - 6} h18 v8 h-14", start + 24, "start"
    else:
        path, at, anchor = (
            f"M{start},{y} L{end - 4 if end > start else end + 4},{y}",
            (start + end) // 2,
            "middle",
        )
    bad = step.outcome in (StepOutcome.FAILED, StepOutcome.CUT_OFF)
    tip = f"{step.component}: {step.what} {step.subject} {step.error}"
    return (
        f'<g class="{"failed" if bad else "ok"}"><title>{escape(tip)}</title><path class="arrow" d="{path}"/>'
        f'<text x="{at}" y="{y - 4}" text-anchor="{anchor}">{escape(step.what)}</text></g>'
    )


def _table(steps: Sequence[JourneyStep]) -> Iterator[str]:
    names = ("since start", "took", "component", "step", "object", "outcome")
    yield f"<table><thead><tr>{''.join(f'<th>{name}' for name in names)}</tr></thead><tbody>"
    for step in steps:
        since = format_milliseconds((step.at - steps[0].at).total_seconds())
        took = format_milliseconds(step.seconds) if step.seconds else ""
        details = "".join(
            f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>"
            for name, text in step.details.items()
            if name in ("request", "reply")
        )
        state = ' class="failed"' if step.outcome is StepOutcome.FAILED else ""
        yield (
            f'<tr><td class="number">{since}<td class="number">{took}<td>{escape(step.component)}'
            f"<td>{escape(step.what)}{details}<td>{escape(shorten_subject(step.subject))}"
            f"<td{state}>{escape(f'{step.outcome} {step.error}')}</tr>"
        )
    yield "</tbody></table>"
