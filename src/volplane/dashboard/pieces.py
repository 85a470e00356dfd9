"""Pieces that several views are made of: states with a sign, times, links, filters, pages of a list."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

from volplane.base.markup import Content, Markup, join, tag
from volplane.dashboard.page_request import PageRequest
from volplane.explain.journey.render_text import shorten_subject

T = TypeVar("T")


class Tone(StrEnum):
    """How a state is coloured. It always has a sign and a word, too."""

    GOOD = "good"
    BUSY = "busy"
    WARN = "warn"
    BAD = "bad"
    IDLE = "idle"


_SIGNS = {  # on a grid of 16: a full disk, a ring in motion, a ring with a gap, a triangle, an empty ring
    Tone.GOOD: tag("circle", cx=8, cy=8, r=5, fill="currentColor"),
    Tone.BUSY: join(
        tag("circle", cx=8, cy=8, r=5, fill="none", stroke="currentColor", stroke_width=2, opacity=".3"),
        tag(
            "path",
            d="M8 3a5 5 0 0 1 5 5",
            fill="none",
            stroke="currentColor",
            stroke_width=2,
            class_="turning",
        ),
    ),
    Tone.WARN: tag("path", d="M8 2.5 14 13.5H2z", fill="none", stroke="currentColor", stroke_width=1.8),
    Tone.BAD: tag("path", d="M8 1.8 15 14.2H1z", fill="currentColor"),
    Tone.IDLE: tag("circle", cx=8, cy=8, r=4.5, fill="none", stroke="currentColor", stroke_width=1.6),
}
SIGNS = {
    tone: tag("svg", sign, viewBox="0 0 16 16", width=12, height=12, aria_hidden="true", class_="sign")
    for tone, sign in _SIGNS.items()
}


def badge(tone: Tone, text: str) -> Markup:
    """A state: its sign and its word."""
    return tag("span", SIGNS[tone], text, class_=f"badge tone-{tone}")


SINCE, AGO = "since", "ago"


def moment(at: datetime | None, style: str = SINCE) -> Markup | None:
    """A time. The script shows how far away it is, so that the text does not change with every rendering."""
    if at is None:
        return None
    text = f"since {at:%H:%M:%S} UTC" if style == SINCE else f"{at:%Y-%m-%d %H:%M:%S} UTC"
    return tag("time", text, datetime=f"{at:%Y-%m-%dT%H:%M:%S}Z", data_age=style)


LINKED_KINDS = frozenset({"pvc", "pv", "pod", "va", "volumeattachment", "node", "volumesnapshot"})


def object_link(page: PageRequest, subject: str, text: str = "") -> Content:
    """A link to the page of an object: pvc/default/data. Other subjects have none."""
    shown = text or shorten_subject(subject)
    if subject.partition("/")[0] in LINKED_KINDS:
        title = subject if shown != subject and not text else None
        return tag("a", shown, href=page.link(f"/object/{subject}"), title=title)
    return shown


def meter(used: int, limit: int, label: str) -> Markup:
    """A bar that shows how much of a limit is used."""
    part = min(used / limit, 1.0) if limit else 1.0
    tone = Tone.BAD if used >= limit else Tone.WARN if part > 0.8 else Tone.BUSY
    return tag(
        "svg",
        tag("rect", width=100, height=6, rx=3, class_="meter-track"),
        tag("rect", width=round(100 * part, 1), height=6, rx=3, class_=f"meter-fill tone-{tone}"),
        viewBox="0 0 100 6",
        preserveAspectRatio="none",
        class_="meter",
        role="img",
        aria_label=label,
    )


def count(number: int, what: str, plural: str = "") -> str:
    return f"{number} {what if number == 1 else plural or what + 's'}"


class ListPart(Struct, frozen=True):
    """One page of a list."""

    number: int
    pages: int
    first: int
    last: int  # exclusive


def choose_part(total: int, number: int, size: int) -> ListPart:
    pages = max((total + size - 1) // size, 1)
    number = min(max(number, 1), pages)
    return ListPart(number, pages, (number - 1) * size, min(number * size, total))


def take(items: Sequence[T], part: ListPart) -> Sequence[T]:
    return items[part.first : part.last]


def pager(page: PageRequest, part: ListPart, total: int, what: str, parameter: str = "page") -> Markup | None:
    """Links to the neighbouring pages of a list; nothing if there is one page only."""
    if part.pages == 1:
        return None

    def link(number: int, text: str, rel: str) -> Content:
        if not 1 <= number <= part.pages:
            return tag("span", text, class_="off", aria_disabled="true")
        return tag("a", text, href=page.link(**{parameter: number if number > 1 else None}), rel=rel)

    return tag(
        "nav",
        link(part.number - 1, "← Previous", "prev"),
        tag("span", f"{part.first + 1} to {part.last} of {total}"),
        link(part.number + 1, "Next →", "next"),
        class_="pager",
        aria_label=f"Pages of {what}",
    )


def filter_form(page: PageRequest, what: str) -> Markup:
    """A box that hides what does not match. The script sends it while the user types."""
    kept = [
        tag("input", type="hidden", name=name, value=value)
        for name, value in page.query
        if name not in ("q", "page")
    ]
    box = tag(
        "input",
        type="search",
        id="filter",
        name="q",
        value=page.parameter("q") or None,
        placeholder=f"Filter {what}",
        aria_label=f"Filter {what}",
        autocomplete="off",
        spellcheck="false",
        aria_keyshortcuts="/",
    )
    return tag("form", kept, box, class_="filter", role="search", data_filter=True)


def choice(
    page: PageRequest, parameter: str, options: Sequence[tuple[str, str]], chosen: str, label: str
) -> Markup:
    """Links of which one is chosen."""
    links = [
        tag(
            "a",
            text,
            href=page.link(**{parameter: value}),
            data_show=True,
            aria_current="true" if value == chosen else None,
        )
        for value, text in options
    ]
    return tag("div", *links, class_="choice", role="group", aria_label=label)


def unknowns(lines: Sequence[str], id: str, title: str = "Not known, because it may not be read") -> Markup:
    """What is not known, and why. Always an element, so that it can be filled later."""
    if not lines:
        return tag("div", id=id)
    items = [tag("li", line) for line in lines]
    return tag("div", tag("p", f"{title}:"), tag("ul", *items), id=id, class_="unknown")


def left_out(number: int, what: str, *all_of_them: Content) -> Markup:
    """That a list has only the newest ones, and where all of them are."""
    where = (" All: ", *all_of_them) if all_of_them else ()
    return tag("p", f"{count(number, f'older {what}')} not shown.", *where, class_="dim")


def empty(text: str, *more: Content) -> Markup:
    return tag("p", text, *more, class_="empty")
