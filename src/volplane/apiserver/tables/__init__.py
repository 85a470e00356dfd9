"""Server-side tables: what `kubectl get` prints for each kind.

The row of a kind in `api.kinds` declares its columns, in the language that `columns.py` explains; `cells.py`
and `pods.py` have the functions that the columns refer to. All columns are always in the response; the client
hides the wide ones.
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
    version: str = "v1",
) -> dict[str, Any]:
    """A Table of these objects. `include_object`: how much of the object each row contains."""
    printer = own or printer_of(kind)
    now = clock.wall()
    api_version = f"meta.k8s.io/{version}"
    table: dict[str, Any] = {"kind": "Table", "apiVersion": api_version, "metadata": _metadata(items)}
    # Only the first event of a watch has the columns; null means unchanged.
    table["columnDefinitions"] = printer.columns if with_columns else None
    table["rows"] = [_row(printer, obj, include_object, now, api_version) for obj in items]
    return table


def _metadata(items: Sequence[Any]) -> dict[str, str]:
    """The table of one object has its resourceVersion; a list sets its own."""
    if len(items) != 1:
        return {}
    [obj] = items
    meta = obj.get("metadata", {}) if isinstance(obj, dict) else {}
    revision = meta.get("resourceVersion", "") if isinstance(obj, dict) else obj.metadata.resource_version
    return {"resourceVersion": revision} if revision else {}


def _row(printer: TablePrinter, obj: Any, include: str, now: datetime, api_version: str) -> dict[str, Any]:
    row: dict[str, Any] = {"cells": printer.cells(obj, now)}
    if printer.conditions is not None and (conditions := printer.conditions(obj)):
        row["conditions"] = conditions
    row["object"] = _row_object(obj, include, api_version)
    return row


def _row_object(obj: Any, include: str, api_version: str) -> Any:
    match include:
        case "" | "Metadata":
            return partial_metadata(obj, api_version)
        case "Object":
            return obj if isinstance(obj, dict) else Raw(codec.encode(obj))
        case "None":
            return None
    raise BadRequest(f'unrecognized includeObject value: "{include}"')


def partial_metadata(obj: Any, api_version: str) -> dict[str, Any]:
    """An object reduced to its metadata."""
    meta = obj.get("metadata") if isinstance(obj, dict) else obj.metadata
    return {"kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": meta}
