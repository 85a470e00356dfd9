"""Tables whose rows are fragments.

They are made of `div` elements with roles: a browser's parser moves anything that is not a row, such as a
slot, out of a `table` element.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from volplane.base.markup import Content, Markup, tag, words
from volplane.dashboard.fragments import slot


def grid(label: str, heads: Sequence[str], rows: Iterable[str], kind: str) -> Markup:
    """A table with the fragments `rows`; `kind` is the class that sets the widths of its columns."""
    head = tag(
        "div", *(tag("div", name, role="columnheader") for name in heads), role="row", class_="grid-head"
    )
    body = tag("div", *map(slot, rows), role="rowgroup")
    return tag(
        "div",
        tag("div", head, role="rowgroup"),
        body,
        role="table",
        aria_label=label,
        class_=f"grid {kind}",
    )


def grid_row(id: str, *cells: Content, class_: str | None = None) -> Markup:
    return tag(
        "div",
        *(tag("div", cell, role="cell") for cell in cells),
        role="row",
        id=id,
        class_=words("grid-row", class_),
    )
