"""Table columns, compiled from the `columns` of a kind (`api.kinds`).

    Name
    Ready & Status & Restarts = pod_summary()
    Drivers#integer = count(spec.drivers)
    VolumeMode* = spec.volumeMode?<unset>
    Age

Each line is a column. `*` marks a column that only `-o wide` shows; `#type` or `#type:format` follows a title
whose cells are not plain strings. After `=` is the source of the cells: a path in the object's JSON, or a
function of a module in `tables`, called with the object or with the value at a path. `?x` is shown
instead of an absent value, `|x` instead of an absent or empty one. Titles joined by `&` share one function,
which returns a cell for each. `Name` and `Age` need no source.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any

from msgspec import Struct

from volplane.api.kinds import Kind
from volplane.apiserver.object_access import path_reader
from volplane.apiserver.tables import cells, data_cells, pods

_SOURCE = re.compile(r"(?:(\w+)\(([\w.]*)\)|([\w.]+))(?:([?|])(.*))?")
_KNOWN_SOURCES: Mapping[str, str] = {"Name": "metadata.name", "Age": "age(metadata.creationTimestamp)"}
_LITERALS: Mapping[str, Any] = {"null": None, "true": True, "false": False, "0": 0, "1": 1}

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {**vars(cells), **vars(data_cells), **vars(pods)}

Cell = Callable[[Any, datetime], Any]


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


@cache
def printer_of(kind: Kind) -> TablePrinter:
    columns: list[TableColumn] = []
    sources: list[tuple[Cell, bool]] = []
    for line in filter(str.strip, kind.columns.splitlines()):
        titles, _, source = (part.strip() for part in line.partition("="))
        columns += map(_column, titles.split(" & "))
        sources.append((_source(kind, source or _KNOWN_SOURCES[titles]), " & " in titles))

    def cells_of(obj: Any, now: datetime) -> list[Any]:
        row: list[Any] = []
        for read, is_several in sources:
            cell = read(obj, now)
            row += cell if is_several else (cell,)
        return row

    conditions = _FUNCTIONS[kind.row_conditions] if kind.row_conditions else None
    return TablePrinter(tuple(columns), cells_of, conditions)


def _column(text: str) -> TableColumn:
    title, _, kind = text.partition("#")
    name = title.rstrip("*")
    type, _, format = kind.partition(":")
    return TableColumn(
        name,
        type=type or "string",
        format=format or ("name" if name == "Name" else ""),
        priority=1 if title.endswith("*") else 0,
    )


def _source(kind: Kind, text: str) -> Cell:
    found = _SOURCE.fullmatch(text)
    if found is None:
        raise ValueError(f"{kind.resource}: cannot parse the source of a column: {text}")
    function, argument, path, sign, fallback = found.groups()
    read = path_reader(kind.type, argument if function else path)
    call = _function(function) if function else None
    instead = _LITERALS.get(fallback, fallback)

    def cell(obj: Any, now: datetime) -> Any:
        value = read(obj)
        if sign and (value is None or (sign == "|" and not value)):
            return instead
        return value if call is None else call(value, now)

    return cell


def _function(name: str) -> Cell:
    function = _FUNCTIONS[name]
    if "now" in inspect.signature(function).parameters:
        return function
    return lambda value, now: function(value)
