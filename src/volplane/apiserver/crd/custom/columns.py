"""The table columns of a custom resource: its name, and the definition's additionalPrinterColumns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from msgspec import json

from volplane.api.apiextensions import CustomResourceColumnDefinition as Definition
from volplane.apiserver.crd.custom import jsonpath
from volplane.apiserver.crd.schema.values import format_number
from volplane.apiserver.tables.columns import TableColumn, TablePrinter
from volplane.base import clock
from volplane.base.units import human_age

NAME = TableColumn(
    "Name",
    format="name",
    description="Name must be unique within a namespace.",
)
AGE = Definition(name="Age", type="date", json_path=".metadata.creationTimestamp")
_IN_JSONPATH = "Custom resource definition column (in JSONPath format): "

Cell = Callable[[Any, datetime], Any]


def printer(columns: Sequence[Definition]) -> TablePrinter:
    """Return the table printer; without additional columns it shows the age."""
    wanted = [(column, found) for column in columns or (AGE,) if (found := _path(column)) is not None]
    headers = (NAME, *(_header(column) for column, _ in wanted))
    cells = [_cell(column.type, find) for column, find in wanted]
    return TablePrinter(
        headers, lambda obj, now: [obj["metadata"].get("name", ""), *(c(obj, now) for c in cells)]
    )


def _path(column: Definition) -> Callable[[Any], list[Any]] | None:
    try:
        return jsonpath.compile(column.json_path)
    except jsonpath.InvalidJSONPath:
        return lambda value: []


def _header(column: Definition) -> TableColumn:
    return TableColumn(
        column.name,
        type=column.type,
        format=column.format,
        description=column.description or f"{_IN_JSONPATH}{column.json_path}",
        priority=column.priority,
    )


def _cell(type: str, find: Callable[[Any], list[Any]]) -> Cell:
    shown = _FORMATTERS[type]

    def cell(obj: Any, now: datetime) -> Any:
        found = find(obj)
        return shown(found[0], now) if found and found[0] is not None else None

    return cell


def _text(value: Any, now: datetime) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return format_number(value)
    return json.encode(value).decode()


def _integer(value: Any, now: datetime) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _number(value: Any, now: datetime) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _boolean(value: Any, now: datetime) -> bool | None:
    return value if isinstance(value, bool) else None


def _date(value: Any, now: datetime) -> str | None:
    if not isinstance(value, str):
        return None
    try:
        return human_age((now - clock.parse(value)).total_seconds())
    except ValueError:
        return "<invalid>"


_FORMATTERS: dict[str, Cell] = {
    "string": _text, "integer": _integer, "number": _number, "boolean": _boolean, "date": _date,
}  # fmt: skip
