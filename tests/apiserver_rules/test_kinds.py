"""Every row of the table of kinds: what it names exists."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from volplane.api import kinds
from volplane.api.kinds import Kind
from volplane.apiserver import strategies
from volplane.apiserver.object_access import path_reader
from volplane.apiserver.tables.columns import printer_of
from volplane.base import clock


@pytest.mark.parametrize("kind", kinds.ALL, ids=lambda kind: kind.resource)
def test_the_strategy_of_a_kind_exists_and_is_written_for_its_type(kind: Kind) -> None:
    strategy = type(strategies.of(kind))
    bases = getattr(strategy, "__orig_bases__", ())
    written_for = [argument for base in bases for argument in get_args(base)]
    assert not kind.strategy or (Any if kind.message else kind.type) in written_for


@pytest.mark.parametrize("kind", kinds.ALL, ids=lambda kind: kind.resource)
def test_the_columns_of_a_kind_can_be_printed(kind: Kind) -> None:
    assert kind.type is not None
    printer = printer_of(kind)
    cells = printer.cells(kind.type(), clock.wall())
    assert len(cells) == len(printer.columns)


@pytest.mark.parametrize("kind", kinds.ALL, ids=lambda kind: kind.resource)
def test_selectable_and_immutable_fields_exist(kind: Kind) -> None:
    stored_as = next(k for k in kinds.ALL if k.resource == (kind.stored_as or kind.resource))
    for path in (*(field.path for field in kind.selectable.values()), *kind.immutable):
        path_reader(stored_as.type, path)


def test_a_kind_without_a_struct_needs_a_row_only() -> None:
    row = Kind(
        None, "example.com", "v1", "Widget", "widgets", columns="Name\nSize#integer = spec.size?0\nAge"
    )
    printer = printer_of(row)
    assert [column.name for column in printer.columns] == ["Name", "Size", "Age"]
    assert printer.cells({"metadata": {"name": "w"}}, clock.wall()) == ["w", 0, "<unknown>"]
    assert printer.cells({"metadata": {"name": "w"}, "spec": {"size": 3}}, clock.wall()) == [
        "w",
        3,
        "<unknown>",
    ]
