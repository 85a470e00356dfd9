"""Pruning and defaulting of plain data with a structural schema."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volplane.apiserver.crd.schema.defaults import drop_nulls, fill
from volplane.apiserver.crd.schema.embedded import coerce
from volplane.apiserver.crd.schema.prune import prune
from volplane.apiserver.decode import Undecodable

Json = Any
STRING = {"type": "string"}
PRESERVE = "x-kubernetes-preserve-unknown-fields"
EMBEDDED = "x-kubernetes-embedded-resource"


def obj(**properties: Json) -> Json:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "given", "kept", "expected"),
    [
        pytest.param(obj(a=STRING), {"a": "1", "b": 2}, {"a": "1"}, ["b"], id="unknown member"),
        pytest.param(
            obj(a=obj(b=STRING)), {"a": {"b": "1", "c": 1}}, {"a": {"b": "1"}}, ["a.c"], id="nested"
        ),
        pytest.param(
            obj(a={"type": "array", "items": obj(b=STRING)}),
            {"a": [{"b": "1"}, {"c": 1}]},
            {"a": [{"b": "1"}, {}]},
            ["a[1].c"],
            id="in a list",
        ),
        pytest.param(
            obj(a={"type": "object", "additionalProperties": obj(b=STRING)}),
            {"a": {"x": {"b": "1", "c": 1}}},
            {"a": {"x": {"b": "1"}}},
            ["a.x.c"],
            id="values of a map",
        ),
        pytest.param(
            obj(a={"type": "object", "additionalProperties": True}),
            {"a": {"x": {"b": 1}, "y": 2}},
            {"a": {"x": {}, "y": 2}},
            ["a.x.b"],
            id="a map without a schema knows nothing of its values",
        ),
        pytest.param(
            obj(a={"type": "object", PRESERVE: True}),
            {"a": {"x": {"y": [1]}}},
            {"a": {"x": {"y": [1]}}},
            [],
            id="preserved",
        ),
        pytest.param(
            obj(a={**obj(b=obj(c=STRING)), PRESERVE: True}),
            {"a": {"x": 1, "b": {"c": "1", "d": 2}}},
            {"a": {"x": 1, "b": {"c": "1"}}},
            ["a.b.d"],
            id="pruning resumes where fields are described",
        ),
        pytest.param(
            obj(a={"type": "array", PRESERVE: True, "items": obj(b=obj(c=STRING))}),
            {"a": [{"x": 1, "b": {"c": "1", "d": 2}}]},
            {"a": [{"x": 1, "b": {"c": "1"}}]},
            ["a[0].b.d"],
            id="items of a preserved list are preserved",
        ),
        pytest.param(
            obj(a={**obj(spec=STRING), EMBEDDED: True}),
            {"a": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "n"}, "spec": "s", "x": 1}},
            {"a": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "n"}, "spec": "s"}},
            ["a.x"],
            id="an embedded resource keeps its metadata",
        ),
        pytest.param(
            obj(spec=STRING),
            {"apiVersion": "v1", "kind": "X", "metadata": {"any": 1}, "spec": "s", "other": 1},
            {"apiVersion": "v1", "kind": "X", "metadata": {"any": 1}, "spec": "s"},
            ["other"],
            id="so does the root",
        ),
        pytest.param(
            obj(a=obj()),
            {"a": {"kind": "X"}},
            {"a": {}},
            ["a.kind"],
            id="a kind elsewhere is a field like others",
        ),
    ],
)
def test_pruning(schema: Json, given: Json, kept: Json, expected: list[str]) -> None:
    assert prune(given, schema, root=True) == expected
    assert given == kept


@pytest.mark.parametrize(
    ("schema", "given", "filled"),
    [
        pytest.param(obj(a={**STRING, "default": "x"}), {}, {"a": "x"}, id="missing"),
        pytest.param(obj(a={**STRING, "default": "x"}), {"a": ""}, {"a": ""}, id="empty is given"),
        pytest.param(obj(a={**STRING, "default": "x"}), {"a": None}, {"a": "x"}, id="null is missing"),
        pytest.param(
            obj(a={**STRING, "default": "x", "nullable": True}),
            {"a": None},
            {"a": None},
            id="null is allowed",
        ),
        pytest.param(obj(a=obj(b={**STRING, "default": "x"})), {}, {}, id="no parent, no default"),
        pytest.param(
            obj(a={**obj(b={**STRING, "default": "x"}), "default": {}}),
            {},
            {"a": {"b": "x"}},
            id="a default is filled too",
        ),
        pytest.param(
            obj(a={"type": "array", "items": obj(b={"type": "integer", "default": 0})}),
            {"a": [{}, {"b": 2}]},
            {"a": [{"b": 0}, {"b": 2}]},
            id="items",
        ),
        pytest.param(
            obj(a={"type": "object", "additionalProperties": obj(b={"type": "boolean", "default": False})}),
            {"a": {"x": {}}},
            {"a": {"x": {"b": False}}},
            id="values",
        ),
        pytest.param(obj(a=STRING), {"a": None}, {}, id="null without a default goes"),
        pytest.param(
            obj(a={"type": "array", "items": STRING}), {"a": [None]}, {"a": [None]}, id="except in lists"
        ),
        pytest.param(
            {**obj(a={"type": "object", PRESERVE: True}), PRESERVE: True},
            {"a": {"b": None}, "c": None},
            {"a": {"b": None}, "c": None},
            id="nulls without schema stay",
        ),
    ],
)
def test_defaults(schema: Json, given: Json, filled: Json) -> None:
    drop_nulls(given, schema)
    fill(given, schema)
    assert given == filled


def test_a_default_is_not_shared_between_objects() -> None:
    schema = obj(a={"type": "array", "items": STRING, "default": []})
    one: Json = {}
    other: Json = {}
    fill(one, schema)
    fill(other, schema)
    one["a"].append("x")
    assert other == {"a": []}


def test_metadata_of_embedded_resources_is_pruned_to_what_metadata_knows() -> None:
    schema = obj(a={"type": "object", EMBEDDED: True, PRESERVE: True})
    value: Json = {"a": {"metadata": {"name": "n", "creationTimestamp": None, "colour": "red"}, "x": 1}}
    assert coerce(value, schema) == ["a.metadata.colour"]
    assert value == {"a": {"metadata": {"name": "n"}, "x": 1}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"kind": 1}, "a.kind: Invalid value: 1: must be a string"),
        ({"metadata": {"labels": {"x": 1}}}, 'a.metadata: Invalid value: {"labels":{"x":1}}: json: cannot'),
    ],
)
def test_malformed_metadata_is_refused(given: Json, expected: str) -> None:
    schema = obj(a={"type": "object", EMBEDDED: True, PRESERVE: True})
    with pytest.raises(Undecodable) as refused:
        coerce({"a": given}, schema)
    assert str(refused.value).startswith(expected)


# Properties

NAMES = st.sampled_from(["a", "b", "c", "metadata", "kind", "spec"])
LEAVES = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "default": "d"},
        {"type": "integer", "default": 0},
        {"type": "string", "nullable": True, "default": "d"},
        {"type": "object", PRESERVE: True},
        {"x-kubernetes-int-or-string": True, "default": 1},
    ]
)


def _wider(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    properties = st.dictionaries(NAMES, inner, max_size=3)
    extras = st.sampled_from([{}, {"default": {}}, {PRESERVE: True}, {"nullable": True}])
    objects = st.builds(lambda p, e: {"type": "object", "properties": p, **e}, properties, extras)
    maps = st.builds(lambda i: {"type": "object", "additionalProperties": i}, inner)
    lists = st.builds(lambda i: {"type": "array", "items": i}, inner)
    return st.one_of(objects, maps, lists)


SCHEMAS = st.recursive(LEAVES, _wider, max_leaves=8)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text("ab", max_size=2))
VALUES = st.recursive(
    SCALARS,
    lambda v: st.one_of(st.lists(v, max_size=3), st.dictionaries(NAMES, v, max_size=4)),
    max_leaves=12,
)


def settle(value: Json, schema: Json, *, root: bool) -> Json:
    prune(value, schema, root=root)
    drop_nulls(value, schema)
    fill(value, schema)
    return value


@given(SCHEMAS, VALUES, st.booleans())
@settings(deadline=None)
def test_pruning_twice_is_pruning_once(schema: Json, value: Json, root: bool) -> None:
    prune(value, schema, root=root)
    before = deepcopy(value)
    assert prune(value, schema, root=root) == []
    assert value == before


@given(SCHEMAS, VALUES, st.booleans())
@settings(deadline=None)
def test_pruning_and_defaulting_are_idempotent(schema: Json, value: Json, root: bool) -> None:
    once = settle(value, schema, root=root)
    assert settle(deepcopy(once), schema, root=root) == once


@given(SCHEMAS, VALUES)
@settings(deadline=None)
def test_defaults_only_add(schema: Json, value: Json) -> None:
    before = deepcopy(value)
    fill(value, schema)
    assert _covers(value, before)


def _covers(filled: Json, given: Json) -> bool:
    if given is None:
        return True  # may have become a default
    if isinstance(given, dict):
        return isinstance(filled, dict) and all(
            k in filled and _covers(filled[k], v) for k, v in given.items()
        )
    if isinstance(given, list):
        return isinstance(filled, list) and len(filled) == len(given) and all(map(_covers, filled, given))
    return bool(filled == given)
