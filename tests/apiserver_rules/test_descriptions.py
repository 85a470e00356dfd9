"""What explain says is about fields that exist, and leaves out none of the storage kinds'."""

from __future__ import annotations

from tests.apiserver_rules.test_published_schema import TYPES
from volplane.api.object import schema
from volplane.apiserver.openapi import descriptions
from volplane.apiserver.openapi.schemas import _type_key

ROWS = {_type_key(of): of for of in TYPES}


def test_every_sentence_is_about_something() -> None:
    lost = []
    for key in descriptions._table():
        row, _, field = key.rpartition(".") if key.count(".") == 2 else (key, "", "")
        known = row in ROWS and (not field or field in schema(ROWS[row]))
        if not known and not key.startswith("*"):
            lost.append(key)
    assert lost == []


def test_no_field_of_the_storage_kinds_is_left_out() -> None:
    silent = [
        f"{row}.{name}"
        for row, of in ROWS.items()
        if row.startswith("storage.")
        for name in schema(of)
        if not descriptions.of_field(row, name)
    ]
    assert silent == []
