"""Server-side tables: what `kubectl get` prints of every kind.

The row of a kind declares its columns (`columns.py` explains how); `cells.py` has the functions that it
names. All columns are always in the response; the client hides the wide ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Raw

from volplane.api import codec
from volplane.api.errors import BadRequest
from volplane.api.kinds import Kind
from volplane.apiserver.tables.columns import TablePrinter, printer_of
from volplane.base import clock


def render(
    kind: Kind,
    items: Sequence[Any],
    include_object: str = "Metadata",
    with_columns: bool = True,
    own: TablePrinter | None = None,
) -> dict[str, Any]:
    """A Table of these objects. `include_object`: how much of the object each row contains."""
    printer = own or printer_of(kind)
    now = clock.wall()
    table: dict[str, Any] = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": _metadata(items)}
    # Only the first event of a watch has the columns; null means unchanged.
    table["columnDefinitions"] = printer.columns if with_columns else None
    table["rows"] = [_row(printer, obj, include_object, now) for obj in items]
    return table


def _metadata(items: Sequence[Any]) -> dict[str, str]:
    """The table of one object has its resourceVersion; a list sets its own."""
    if len(items) != 1:
        return {}
    [obj] = items
    meta = obj.get("metadata", {}) if isinstance(obj, dict) else {}
    revision = meta.get("resourceVersion", "") if isinstance(obj, dict) else obj.metadata.resource_version
    return {"resourceVersion": revision} if revision else {}


def _row(printer: TablePrinter, obj: Any, include: str, now: datetime) -> dict[str, Any]:
    row: dict[str, Any] = {"cells": printer.cells(obj, now)}
    if printer.conditions is not None and (conditions := printer.conditions(obj)):
        row["conditions"] = conditions
    row["object"] = _row_object(obj, include)
    return row


def _row_object(obj: Any, include: str) -> Any:
    match include:
        case "" | "Metadata":
            return partial_metadata(obj)
        case "Object":
            return obj if isinstance(obj, dict) else Raw(codec.encode(obj))
        case "None":
            return None
    raise BadRequest(f'unrecognized includeObject value: "{include}"')


def partial_metadata(obj: Any) -> dict[str, Any]:
    """An object reduced to its metadata."""
    meta = obj.get("metadata") if isinstance(obj, dict) else obj.metadata
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta}
