"""Error messages of value validation."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.apiserver.crd.schema import embedded, lists, patterns
from volplane.apiserver.crd.schema.correlate import ValuePair
from volplane.apiserver.crd.schema.values import validate

Json = Any
EMBEDDED = "x-kubernetes-embedded-resource"
LIST_TYPE, LIST_KEYS = "x-kubernetes-list-type", "x-kubernetes-list-map-keys"


def value_errors(schema: Json, value: Json) -> list[str]:
    """Return the errors of `spec.x`."""
    root = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"x": schema}}}}
    return [str(cause) for cause in validate({"spec": {"x": value}}, root)]


def type_error_text(wanted: str, given: str) -> str:
    return f'spec.x: Invalid value: "{given}": spec.x in body must be of type {wanted}: "{given}"'


NOT_SUPPORTED = 'spec.x: Unsupported value: "c": supported values: "a", "b"'
BY_KEY = {LIST_TYPE: "map", LIST_KEYS: ["k"]}


@pytest.mark.parametrize(
    ("schema", "value", "words"),
    [
        ({"type": "integer"}, "a", type_error_text("integer", "string")),
        ({"type": "string"}, 1, type_error_text("string", "integer")),
        ({"type": "string"}, True, type_error_text("string", "boolean")),
        ({"type": "string"}, None, type_error_text("string", "null")),
        ({"type": "integer"}, 1.5, type_error_text("integer", "number")),
        ({"type": "object"}, [], type_error_text("object", "array")),
        (
            {"x-kubernetes-int-or-string": True},
            True,
            'spec.x: Invalid value: "boolean": spec.x in body must be of type integer,string: "boolean"',
        ),
        (
            {"type": "string", "format": "date-time"},
            "yesterday",
            'spec.x: Invalid value: "yesterday": spec.x in body must be of type date-time: "yesterday"',
        ),
        (
            {"type": "string", "format": "date-time"},
            7,
            'spec.x: Invalid value: "int64": spec.x in body must be of type date-time: "int64"',
        ),
        ({"type": "string", "enum": ["a", "b"]}, "c", NOT_SUPPORTED),
        ({"type": "integer", "enum": [1, 2]}, 3, 'spec.x: Unsupported value: 3: supported values: "1", "2"'),
        (
            {"type": "string", "pattern": "^a+$"},
            "b",
            "spec.x: Invalid value: \"b\": spec.x in body should match '^a+$'",
        ),
        ({"type": "string", "maxLength": 2}, "abc", "spec.x: Too long: may not be more than 2 bytes"),
        (
            {"type": "string", "minLength": 1},
            "",
            'spec.x: Invalid value: "": spec.x in body should be at least 1 chars long',
        ),
        (
            {"type": "integer", "minimum": 1},
            0,
            "spec.x: Invalid value: 0: spec.x in body should be greater than or equal to 1",
        ),
        (
            {"type": "integer", "minimum": 1, "exclusiveMinimum": True},
            1,
            "spec.x: Invalid value: 1: spec.x in body should be greater than 1",
        ),
        (
            {"type": "number", "maximum": 1.5},
            2,
            "spec.x: Invalid value: 2: spec.x in body should be less than or equal to 1.5",
        ),
        (
            {"type": "integer", "maximum": 5.0, "exclusiveMaximum": True},
            5,
            "spec.x: Invalid value: 5: spec.x in body should be less than 5",
        ),
        (
            {"type": "integer", "multipleOf": 5},
            7,
            "spec.x: Invalid value: 7: spec.x in body should be a multiple of 5",
        ),
        (
            {"type": "integer", "format": "int32"},
            1 << 31,
            '<nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec.x',
        ),
        (
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
            [],
            "spec.x: Invalid value: 0: spec.x in body should have at least 1 items",
        ),
        (
            {"type": "array", "items": {"type": "string"}, "maxItems": 1},
            ["a", "b"],
            "spec.x: Too many: 2: must have at most 1 items",
        ),
        (
            {"type": "array", "items": {"type": "string"}},
            ["a", 1],
            'spec.x[1]: Invalid value: "integer": spec.x[1] in body must be of type string: "integer"',
        ),
        (
            {"type": "object", "minProperties": 1},
            {},
            "spec.x: Invalid value: 0: spec.x in body should have at least 1 properties",
        ),
        ({"type": "object", "maxProperties": 0}, {"a": 1}, "spec.x: Too many: 1: must have at most 0 items"),
        ({"type": "object", "required": ["a"]}, {}, "spec.x.a: Required value"),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            {"a": "b"},
            'spec.x.a: Invalid value: "string": spec.x.a in body must be of type integer: "string"',
        ),
        (
            {"type": "object", "not": {"required": ["a"]}},
            {"a": 1},
            '<nil>: Invalid value: "": "spec.x" must not validate the schema (not)',
        ),
        (
            {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {"a": 1, "b": 1},
            '<nil>: Invalid value: "": "spec.x" must validate one and only one schema (oneOf). '
            "Found 2 valid alternatives",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_one_error(schema: Json, value: Json, words: str) -> None:
    assert value_errors(schema, value) == [words]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, 1.0),
        ({"type": "number"}, 1),
        ({"type": "string", "nullable": True}, None),
        ({"x-kubernetes-int-or-string": True}, 1),
        ({"x-kubernetes-int-or-string": True, "pattern": "^[0-9]+%$"}, "5%"),
        ({"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}, "5"),
        ({"x-kubernetes-preserve-unknown-fields": True}, {"a": [1]}),
        ({"type": "string", "format": "no-such-format"}, "x"),
        ({"type": "string", "maxLength": 2}, "ää"),
        ({"type": "string", "format": "date-time"}, "2026-01-02T03:04:05.5+01:00"),
        ({"type": "string", "format": "byte"}, "YQ=="),
        ({"type": "string", "format": "duration"}, "1h2m3s"),
        ({"type": "string", "format": "ipv4"}, "10.0.0.1"),
        ({"type": "string", "format": "ipv6"}, "::1"),
        ({"type": "string", "format": "cidr"}, "10.0.0.0/8"),
        ({"type": "string", "format": "uuid"}, "c9c8b0a1-2d3e-4f5a-9b7c-0123456789ab"),
        ({"type": "string", "format": "uri"}, "https://a/b"),
        ({"type": "string", "format": "email"}, "a@example.com"),
        ({"type": "string", "format": "hostname"}, "a.example.com"),
        ({"type": "number", "multipleOf": 0.1}, 0.3),
        ({"type": "boolean", "enum": [True]}, True),
        ({"type": "integer", "allOf": [{"minimum": 1}, {"maximum": 3}]}, 2),
    ],
    ids=str,
)
def test_valid_values(schema: Json, value: Json) -> None:
    assert value_errors(schema, value) == []


@pytest.mark.parametrize(
    ("format", "value"),
    [
        ("date", "2026-13-01"), ("date-time", "2026-01-02"), ("byte", "YQ="), ("duration", "soon"),
        ("ipv4", "10.0.0.256"), ("ipv6", "10.0.0.1"), ("cidr", "10.0.0.1"), ("mac", "00:11"), ("uuid4", "x"),
        ("uri", "a b"), ("email", "nobody"), ("hostname", "-a"), ("isbn", "1"), ("creditcard", "4111"),
        ("ssn", "1"), ("hexcolor", "#12"), ("rgbcolor", "rgb(256,0,0)"), ("bsonobjectid", "1"),
        ("k8s-short-name", "A"), ("k8s-long-name", "a..b"),
    ],
)  # fmt: skip
def test_values_that_do_not_match_their_format(format: str, value: str) -> None:
    assert len(value_errors({"type": "string", "format": format}, value)) == 1


def test_several_errors_are_reported_at_once() -> None:
    schema = {"type": "object", "required": ["a", "b"], "properties": {"c": {"type": "integer"}}}
    assert value_errors(schema, {"c": "x"}) == [
        'spec.x.c: Invalid value: "string": spec.x.c in body must be of type integer: "string"',
        "spec.x.a: Required value",
        "spec.x.b: Required value",
    ]


def test_the_errors_of_the_closest_alternative_are_reported() -> None:
    alternatives = [
        {"required": ["a"], "properties": {"a": {"minimum": 5}, "b": {"minimum": 5}}},
        {"required": ["c"]},
    ]
    assert value_errors({"type": "object", "anyOf": alternatives}, {"a": 1, "b": 7}) == [
        '<nil>: Invalid value: "": "spec.x" must validate at least one schema (anyOf)',
        "spec.x.a: Invalid value: 1: spec.x.a in body should be greater than or equal to 5",
    ]


def test_the_errors_of_all_failed_parts_are_reported() -> None:
    assert value_errors({"type": "integer", "allOf": [{"minimum": 1}, {"minimum": 0}]}, -1) == [
        "spec.x: Invalid value: -1: spec.x in body should be greater than or equal to 1",
        "spec.x: Invalid value: -1: spec.x in body should be greater than or equal to 0",
        '<nil>: Invalid value: "": "spec.x" must validate all the schemas (allOf). None validated',
    ]


def test_messages_of_a_part_use_relative_paths() -> None:
    schema = {"type": "object", "properties": {"ready": {"type": "boolean"}}}
    [cause] = validate({"ready": "x"}, schema, base="status")
    assert str(cause) == (
        'status.ready: Invalid value: "string": ready in body must be of type boolean: "string"'
    )


# Ratcheting


def _update(schema: Json, old: Json, new: Json) -> list[str]:
    return [cause.field for cause in validate(new, schema, pair=ValuePair(new, old))]


SHORT = {"type": "string", "maxLength": 1}


@pytest.mark.parametrize(
    ("schema", "old", "new", "fields"),
    [
        pytest.param(
            {"type": "object", "properties": {"a": SHORT, "b": SHORT}},
            {"a": "xx", "b": "y"},
            {"a": "xx", "b": "yy"},
            ["b"],
            id="an unchanged member is forgiven",
        ),
        pytest.param(
            {"type": "array", "items": SHORT}, ["xx"], ["xx", "y"], ["[0]"], id="items of a list are new"
        ),
        pytest.param(
            {
                "type": "array",
                LIST_TYPE: "map",
                LIST_KEYS: ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": SHORT}},
            },
            [{"k": "1", "v": "xx"}],
            [{"k": "2", "v": "xx"}, {"k": "1", "v": "xx"}],
            ["[0].v"],
            id="items of a map list are found by key",
        ),
        pytest.param(
            {"type": "object", "additionalProperties": SHORT},
            {"a": "xx"},
            {"a": "xx", "b": "yy"},
            ["b"],
            id="values of a map go by key",
        ),
        pytest.param(
            {"type": "object", "required": ["a"], "properties": {"b": SHORT}},
            {"b": "x"},
            {"b": "y"},
            ["a"],
            id="what is missing is missed when its object changes",
        ),
        pytest.param(
            {"type": "object", "required": ["a"], "properties": {"b": SHORT}},
            {"b": "xx"},
            {"b": "xx"},
            [],
            id="and not when it does not",
        ),
    ],
)
def test_an_update_ignores_errors_in_unchanged_values(
    schema: Json, old: Json, new: Json, fields: list[str]
) -> None:
    assert _update(schema, old, new) == fields


# Lists and embedded resources


@pytest.mark.parametrize(
    ("schema", "value", "words"),
    [
        ({LIST_TYPE: "set"}, ["a", "b", "a", "a"], ['x[2]: Duplicate value: "a"']),
        ({LIST_TYPE: "set"}, [1, True, "1"], []),
        ({LIST_TYPE: "set"}, [{"a": 1, "b": 2}, {"b": 2, "a": 1}], ['x[1]: Duplicate value: {"b":2,"a":1}']),
        (BY_KEY, [{"k": 1, "v": 1}, {"k": 1, "v": 2}], ['x[1]: Duplicate value: {"k":1}']),
        (BY_KEY, [{"v": 1}, {"v": 2}], ["x[1]: Duplicate value: {}"]),
        ({LIST_TYPE: "map", LIST_KEYS: ["k", "l"]}, [{"k": 1, "l": 1}, {"k": 1, "l": 2}], []),
        (
            BY_KEY,
            ["a"],
            ['x[0]: Invalid value: "a": must be an object for an array of list-type map'],
        ),
        ({}, ["a", "a"], []),
    ],
)  # fmt: skip
def test_sets_and_maps_have_no_duplicates(schema: Json, value: Json, words: list[str]) -> None:
    root = {"type": "object", "properties": {"x": {"type": "array", **schema}}}
    assert [str(cause) for cause in lists.validate({"x": value}, root)] == words


def test_embedded_resources_name_their_kind() -> None:
    root = {"type": "object", "properties": {"x": {"type": "object", EMBEDDED: True}}}
    value = {"x": {"kind": "9", "metadata": {"labels": {"-": "v"}}}}
    fields = [cause.field for cause in embedded.validate(value, root)]
    assert fields == ["x.apiVersion", "x.kind", "x.metadata.labels"]
    assert embedded.validate({"x": {"apiVersion": "v1", "kind": "Pod"}}, root) == []


# Patterns


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        ("^a$", "a", "a\n"),
        (r"^\d+\z", "12", "٣"),
        ("^[[:alpha:]_]+$", "aB_", "1"),
        ("^[^]x]$", "a", "]"),
        ("^[$]$", "$", "a"),
        ("(?<n>a)b", "ab", "b"),
        ("(?i)^A$", "a", "b"),
        (r"^\$$", "$", "a"),
        (r"^\pL+$", "äß", "1"),
        (r"\Qa.b\E", "a.b", "axb"),
    ],
)
def test_patterns_mean_what_they_mean_in_go(pattern: str, fits: str, fails: str) -> None:
    compiled = patterns.compile(pattern)
    assert compiled.search(fits)
    assert not compiled.search(fails)


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", "(?<!a)b", r"(a)\1", r"\C", "a{1001}", "[[:nope:]]", "*"])
def test_patterns_that_go_cannot_compile_are_refused(pattern: str) -> None:
    with pytest.raises(patterns.InvalidPattern):
        patterns.compile(pattern)
