"""Descriptions name types and fields that exist, and no field of the storage kinds lacks one."""

from __future__ import annotations

from tests.apiserver_rules.test_published_schema import TYPES
from volplane.api.object import schema
from volplane.apiserver.openapi.descriptions import describe_field, descriptions
from volplane.apiserver.openapi.schemas import _type_key

BY_KEY = {_type_key(of): of for of in TYPES}


def test_every_description_is_of_a_type_or_field_that_exists() -> None:
    unknown = [
        f"{key}.{name}"
        for key, fields in descriptions().items()
        for name in fields
        if key != "any" and (key not in BY_KEY or name not in ("self", *schema(BY_KEY[key])))
    ]
    assert unknown == []


def test_no_field_of_the_storage_kinds_is_left_out() -> None:
    silent = [
        f"{key}.{name}"
        for key, of in BY_KEY.items()
        if key.startswith("storage.")
        for name in schema(of)
        if not describe_field(key, name)
    ]
    assert silent == []
