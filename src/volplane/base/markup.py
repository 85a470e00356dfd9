"""HTML and SVG as text. Escaping happens here and nowhere else.

`tag("td", name, class_="number")` escapes what it is given; only what another `tag` has made is taken as it
is. So text of users cannot become markup, whatever page shows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias, Union

VOID = frozenset({"br", "circle", "hr", "img", "input", "line", "link", "meta", "path", "rect", "use"})


class Markup(str):
    """Text that is HTML or SVG already."""

    __slots__ = ()


Content: TypeAlias = Union[str, int, Iterable["Content"], None]  # noqa: UP007 - it is recursive
AttributeValue: TypeAlias = str | int | float | bool | None

EMPTY = Markup("")


def tag(name: str, /, *content: Content, **attributes: AttributeValue) -> Markup:
    """An element. `class_` is written `class`, `aria_label` is written `aria-label`.

    An attribute that is None or False is left out; True is written without a value.
    """
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        parts.append(f" {key.rstrip('_').replace('_', '-')}")
        if value is not True:
            parts.append(f'="{escape(format(value, "g") if isinstance(value, float) else str(value))}"')
    if name in VOID and not content:
        parts.append("/>")
        return Markup("".join(parts))
    parts.append(">")
    _add(parts, content)
    parts.append(f"</{name}>")
    return Markup("".join(parts))


def join(*content: Content) -> Markup:
    """Several pieces one after the other."""
    parts: list[str] = []
    _add(parts, content)
    return Markup("".join(parts))


def words(*names: str | bool | None) -> str | None:
    """The value of a `class` attribute; None if there is no name."""
    return " ".join(name for name in names if isinstance(name, str) and name) or None


def _add(parts: list[str], content: Iterable[Content]) -> None:
    for each in content:
        if each is None or isinstance(each, bool):  # as in `is_lost and tag(…)`
            continue
        if isinstance(each, Markup):
            parts.append(each)
        elif isinstance(each, str):
            parts.append(escape(each))
        elif isinstance(each, int):
            parts.append(str(each))
        else:
            _add(parts, each)
