"""A badge for a README: the result of the run as a small SVG image, without fonts or other assets."""

from __future__ import annotations

from html import escape
from pathlib import Path

from volplane.testing.report import DriverTestRun
from volplane.testing.runner import CaseVerdict

LABEL = "CSI tests"
GOOD, BAD, INTERRUPTED, LABEL_COLOR = "#18794e", "#c4320a", "#667085", "#3b4250"
HEIGHT, PADDING, SIZE = 20, 7, 11
NARROW, WIDE = "fijlrt ,.:;'()|I1", "mwMW@%"  # letters of a proportional font


def write(run: DriverTestRun, path: str | Path) -> None:
    Path(path).write_text(badge(run), encoding="utf-8")


def message(run: DriverTestRun) -> tuple[str, str]:
    """The text of the badge, and its colour."""
    if not run.complete:
        return "interrupted", INTERRUPTED
    if new := len(run.new_failures):
        return f"{new} failed, {run.count(CaseVerdict.PASSED)} passed", BAD
    known = len(run.failed_results)
    return f"{run.count(CaseVerdict.PASSED)} passed" + (f", {known} known" if known else ""), GOOD


def badge(run: DriverTestRun) -> str:
    text, color = message(run)
    left, right = _width(LABEL), _width(text)
    title = escape(f"{run.driver} {run.version}: {text}".strip())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{HEIGHT}" role="img" '
        f'aria-label="{title}"><title>{title}</title>'
        f'<clipPath id="corners"><rect width="{left + right}" height="{HEIGHT}" rx="4"/></clipPath>'
        '<g clip-path="url(#corners)">'
        f'<rect width="{left}" height="{HEIGHT}" fill="{LABEL_COLOR}"/>'
        f'<rect x="{left}" width="{right}" height="{HEIGHT}" fill="{color}"/></g>'
        f'<g fill="#fff" font-family="Verdana, Geneva, DejaVu Sans, sans-serif" font-size="{SIZE}">'
        f"{_text(LABEL, 0, left)}{_text(text, left, right)}</g></svg>\n"
    )


def _text(text: str, start: int, width: int) -> str:
    # textLength: the same width with whatever font the viewer has.
    return (
        f'<text x="{start + PADDING}" y="14" textLength="{width - 2 * PADDING}" '
        f'lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'
    )


def _width(text: str) -> int:
    """The width of the text with its padding, in pixels."""
    letters = sum(4.0 if c in NARROW else 10.0 if c in WIDE else 6.8 for c in text)
    return round(letters) + 2 * PADDING
