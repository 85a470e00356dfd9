"""The pieces of a printer: column definitions and the cells that several kinds share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from volplane.api.core import Container
from volplane.api.meta import LabelSelector
from volplane.api.selectors import InvalidSelector, LabelMatcher
from volplane.base import clock
from volplane.base.units import human_age

NONE, UNKNOWN, UNSET = "<none>", "<unknown>", "<unset>"


class TableColumn(Struct, frozen=True):
    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


class TablePrinter(Struct, frozen=True):
    columns: tuple[TableColumn, ...]
    cells: Callable[[Any, datetime], list[Any]]
    conditions: Callable[[Any], list[dict[str, str]]] | None = None


def columns(*names: str) -> tuple[TableColumn, ...]:
    """Columns in short: `BindingReady`, `IP*` (only with -o wide), `Desired#integer`."""
    return tuple(_column(name) for name in names)


def _column(text: str) -> TableColumn:
    title, _, kind = text.partition("#")
    wide = title.endswith("*")
    name = title.rstrip("*")
    return TableColumn(
        name,
        type=kind or "string",
        format="name" if name == "Name" else "",
        priority=1 if wide else 0,
    )


def age(stamp: str | None, now: datetime) -> str:
    """How long ago, in the words of the AGE column."""
    return human_age((now - clock.parse(stamp)).total_seconds()) if stamp else UNKNOWN


def age_of(obj: Any, now: datetime) -> str:
    return age(obj.metadata.creation_timestamp, now)


def containers(given: Iterable[Container]) -> list[str]:
    """Names and images, a cell each."""
    listed = list(given)
    return [",".join(c.name for c in listed), ",".join(c.image for c in listed)]


def labels(given: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(given.items())) or NONE


def selector(given: LabelSelector | None, empty: str = NONE) -> str:
    if given is None:
        return NONE
    try:
        return str(LabelMatcher.of(given)) or empty
    except InvalidSelector:
        return "<error>"
