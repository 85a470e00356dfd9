"""Validation of schemas in definitions, and name conflicts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import structs

from volplane.api.apiextensions import CustomResourceDefinition as Definition
from volplane.api.apiextensions import CustomResourceDefinitionNames as Names
from volplane.api.apiextensions import CustomResourceDefinitionSpec as Spec
from volplane.api.apiextensions import CustomResourceDefinitionVersion as Version
from volplane.api.apiextensions import CustomResourceValidation, JSONSchemaProps
from volplane.api.errors import BadRequest
from volplane.api.meta import ObjectMeta
from volplane.apiserver.crd.custom import jsonpath
from volplane.apiserver.crd.custom.publish import published_model
from volplane.apiserver.crd.definition import approval, names
from volplane.apiserver.crd.definition.checks.spec import validate_schema
from volplane.apiserver.crd.definition.conditions import find
from volplane.apiserver.crd.definition.schemas import normalize_schemas, schema_of
from volplane.apiserver.version_priority import version_sort_key

Json = Any
STRING, INTEGER = {"type": "string"}, {"type": "integer"}
PRESERVE, EMBEDDED = "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"
INT_OR_STRING = "x-kubernetes-int-or-string"
LIST_TYPE, LIST_KEYS = "x-kubernetes-list-type", "x-kubernetes-list-map-keys"
MAP_TYPE, RULES = "x-kubernetes-map-type", "x-kubernetes-validations"


def schema_errors(schema: Json, **more: bool) -> list[str]:
    """Return the errors of property `x` of a root, or of a complete root."""
    root = schema if schema.get("root") else {"type": "object", "properties": {"x": schema}}
    root = {key: value for key, value in root.items() if key != "root"}
    return [str(c).replace("s.properties[x]", "x", 1) for c in validate_schema("s", root, **more)]


def items(**more: Json) -> Json:
    return {"type": "array", "items": {"type": "object", "properties": {"k": STRING}, **more}}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({}, "x.type: Required value: must not be empty for specified object fields"),
        ({"type": "array"}, "x.items: Required value: must be specified"),
        (
            {"type": "array", "items": {}},
            "x.items.type: Required value: must not be empty for specified array items",
        ),
        (
            {"type": "colour"},
            'x.type: Unsupported value: "colour": supported values: "array", "boolean", "integer", "number", '
            '"object", "string"',
        ),
        ({"root": True}, "s.type: Required value: must not be empty at the root"),
        ({"root": True, "type": "string"}, 's.type: Invalid value: "string": must be object at the root'),
        (
            {"root": True, "type": "object", "additionalProperties": STRING},
            "s.additionalProperties: Forbidden: must not be used at the root",
        ),
        (
            {"root": True, "type": "object", "nullable": True},
            "s.nullable: Forbidden: nullable cannot be true at the root",
        ),
        (
            {"root": True, "type": "object", "properties": {"metadata": {**STRING}}},
            's.properties[metadata].type: Invalid value: "string": must be object',
        ),
        (
            {
                "root": True,
                "type": "object",
                "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}},
            },
            "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, "
            "but metadata is implicitly specified",
        ),
        (
            {"type": "object", "properties": {"a": STRING}, "anyOf": [{"properties": {"a": STRING}}]},
            "x.anyOf[0].properties[a].type: Forbidden: must be empty to be structural",
        ),
        (
            {"root": True, "type": "object", "anyOf": [{"properties": {"a": {"minLength": 1}}}]},
            "s.properties[a]: Required value: because it is defined in s.anyOf[0].properties[a]",
        ),
        ({**STRING, "not": {"default": "a"}}, "x.not.default: Forbidden: must be undefined to be structural"),
        (
            {**STRING, "pattern": "("},
            'x.pattern: Invalid value: "(": must be a valid regular expression, but isn\'t: ',
        ),
        (
            {EMBEDDED: True, PRESERVE: True},
            f"x.type: Required value: must be object if {EMBEDDED} is true",
        ),
        (
            {"type": "object", EMBEDDED: True},
            f"x.properties: Required value: must not be empty if {EMBEDDED} is true without {PRESERVE}",
        ),
        ({INT_OR_STRING: True, PRESERVE: True}, f"x.{PRESERVE}: Invalid value: true: must be false if"),
        (
            {"type": "object", PRESERVE: False},
            f"x.{PRESERVE}: Invalid value: false: must be true or undefined",
        ),
        (
            {"type": "array", "items": STRING, "uniqueItems": True},
            "x.uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime",
        ),
        ({**STRING, "$ref": "#/a"}, "x.$ref: Forbidden: $ref is not supported"),
        (
            {"type": "object", "properties": {"a": STRING}, "additionalProperties": STRING},
            "x.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        # Defaults
        (
            {**INTEGER, "default": "a"},
            'x.default: Invalid value: "string":  in body must be of type integer: "string"',
        ),
        (
            {"type": "object", "properties": {"a": STRING}, "default": {"b": 1}},
            'x.default: Invalid value: {"b":1}: must not have unknown fields',
        ),
        (
            {**INTEGER, "default": 0, RULES: [{"rule": "self > 0", "message": "m"}]},
            "x.default: Invalid value: 0: m",
        ),
        (
            {"root": True, "type": "object", "properties": {"kind": {**STRING, "default": "K"}}},
            "s.properties[kind].default: Forbidden: must not be set in top-level kind",
        ),
        # Lists and maps
        ({**STRING, LIST_TYPE: "set"}, f'x.type: Invalid value: "string": must be array if {LIST_TYPE} is'),
        (
            {"type": "array", "items": STRING, LIST_TYPE: "bag"},
            f'x.{LIST_TYPE}: Unsupported value: "bag": supported values: "atomic", "set", "map"',
        ),
        (
            {**items(), LIST_TYPE: "set"},
            f"x.items.{MAP_TYPE}: Invalid value: null: must be atomic as item of a list with {LIST_TYPE}=set",
        ),
        (
            {**items(), LIST_TYPE: "map"},
            f"x.{LIST_KEYS}: Required value: must not be empty if {LIST_TYPE} is map",
        ),
        (
            {**items(), LIST_TYPE: "map", LIST_KEYS: ["k"]},
            f"x.items.properties[k].default: Required value: this property is in {LIST_KEYS}, so it must "
            "have a default or be a required property",
        ),
        (
            {**items(required=["k"]), LIST_TYPE: "map", LIST_KEYS: ["z"]},
            f'x.{LIST_KEYS}: Invalid value: ["z"]: entries must all be names of item properties',
        ),
        (
            {**items(), LIST_KEYS: ["k"]},
            f"x.{LIST_TYPE}: Required value: must be map if {LIST_KEYS} is non-empty",
        ),
        (
            {**items(required=["k"], nullable=True), LIST_TYPE: "map", LIST_KEYS: ["k"]},
            f"x.items.nullable: Forbidden: cannot be nullable when {LIST_TYPE} is map",
        ),
        (
            {"type": "object", MAP_TYPE: "loose"},
            f'x.{MAP_TYPE}: Unsupported value: "loose": supported values: "atomic", "granular"',
        ),
        # Rules
        ({**STRING, RULES: [{"rule": " "}]}, f"x.{RULES}[0].rule: Required value: rule is not specified"),
        (
            {**STRING, RULES: [{"rule": "true", "message": "a\nb"}]},
            f'x.{RULES}[0].message: Invalid value: "a\\nb": must not contain line breaks',
        ),
        (
            {**STRING, RULES: [{"rule": "true &&\ntrue"}]},
            f"x.{RULES}[0].message: Required value: message must be specified if rule contains line breaks",
        ),
        (
            {**STRING, RULES: [{"rule": "true", "reason": "Because"}]},
            f'x.{RULES}[0].reason: Unsupported value: "Because": supported values: "FieldValueDuplicate", ',
        ),
        (
            {**STRING, RULES: [{"rule": "true", "fieldPath": ".a"}]},
            f'x.{RULES}[0].fieldPath: Invalid value: ".a": must be a valid path',
        ),
        (
            {"type": "array", "items": {**STRING, RULES: [{"rule": "self == oldSelf"}]}},
            f'x.items.{RULES}[0].rule: Invalid value: "self == oldSelf": oldSelf cannot be used on the '
            "uncorrelatable portion of the schema within x",
        ),
        (
            {**STRING, RULES: [{"rule": "true", "optionalOldSelf": True}]},
            f"x.{RULES}[0].optionalOldSelf: Invalid value: true: may not be set if oldSelf is not",
        ),
    ],
    ids=str,
)
def test_invalid_schemas_are_refused(schema: Json, words: str) -> None:
    found = schema_errors(schema)
    assert any(text.replace("s.properties[x]", "x").startswith(words) for text in found), found


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "array", "items": STRING}}},
        {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": STRING}}},
        {PRESERVE: True},
        {"type": "object", EMBEDDED: True, PRESERVE: True},
        {INT_OR_STRING: True, "anyOf": [INTEGER, STRING]},
        {INT_OR_STRING: True, "allOf": [{"anyOf": [INTEGER, STRING]}, {"pattern": "a"}]},
        {**STRING, "default": "a", "enum": ["a"]},
        {**items(required=["k"]), LIST_TYPE: "map", LIST_KEYS: ["k"]},
        {**STRING, RULES: [{"rule": "self == oldSelf", "message": "m", "reason": "FieldValueForbidden"}]},
    ],
    ids=str,
)
def test_valid_schemas_are_accepted(schema: Json) -> None:
    assert schema_errors(schema) == []


def test_the_status_subresource_limits_the_root_of_the_schema() -> None:
    root = {"root": True, "type": "object", "properties": {"status": {"type": "object"}}, "maxProperties": 1}
    assert (
        "fields are allowed at the root of the schema if the status subresource is enabled"
        in schema_errors(root, status=True)[0]
    )
    assert schema_errors(root) == []


# Normalization of schemas


def definition(name: str = "widgets", schema: Json = None, **called: Json) -> Definition:
    props = msgspec.convert(schema or {"type": "object"}, JSONSchemaProps)
    version = Version("v1", True, True, schema=CustomResourceValidation(open_apiv3_schema=props))
    spelled = Names(
        **{"plural": name, "singular": name[:-1], "kind": name.title(), "list_kind": f"{name}l", **called}
    )
    return Definition(
        metadata=ObjectMeta(name=f"{name}.example.com"),
        spec=Spec(group="example.com", names=spelled, scope="Namespaced", versions=(version,)),
    )


def test_unions_are_cleaned_like_the_rest() -> None:
    inner = {"type": "object", "nonsense": 1, "properties": {"a": {"type": "string", "enum": None}}}
    given = definition(schema={"type": "object", "properties": {"x": {"type": "array", "items": inner}}})
    schema = schema_of(normalize_schemas(given).spec.versions[0])
    assert schema is not None
    assert schema["properties"]["x"]["items"] == {"type": "object", "properties": {"a": STRING}}


def test_wrong_types_in_unions_are_refused() -> None:
    given = definition(schema={"type": "object", "properties": {"x": {"items": {"type": 5}}}})
    with pytest.raises(BadRequest, match="cannot unmarshal number"):
        normalize_schemas(given)


# Names


def accept_names(given: Definition, *others: Definition) -> Definition:
    return names.accept_names(given, others, "2026-01-01T00:00:00Z")


def reason(found: Definition) -> str:
    condition = find(found, "NamesAccepted")
    assert condition is not None
    return condition.reason


@pytest.mark.parametrize(
    ("called", "why"),
    [
        ({}, "NoConflicts"),
        ({"singular": "widget"}, "SingularConflict"),
        ({"short_names": ("wd",)}, "ShortNamesConflict"),
        ({"kind": "Widgets"}, "KindConflict"),
        ({"list_kind": "widgetsl"}, "ListKindConflict"),
        ({"kind": "widget"}, "NoConflicts"),
    ],
)
def test_a_name_belongs_to_the_first_definition(called: Json, why: str) -> None:
    first = accept_names(definition(short_names=("wd",)))
    second = accept_names(definition("gadgets", **called), first)
    assert reason(second) == why


def test_other_groups_have_their_own_names() -> None:
    first = accept_names(definition())
    elsewhere = structs.replace(first, spec=structs.replace(first.spec, group="example.org"))
    assert reason(accept_names(definition(), elsewhere)) == "NoConflicts"


def test_an_established_kind_stays_established() -> None:
    mine = accept_names(definition())
    rival = accept_names(definition("gadgets", short_names=("g",)))
    wants = structs.replace(mine.spec, names=structs.replace(mine.spec.names, short_names=("g",)))
    found = accept_names(structs.replace(mine, spec=wants), rival)
    assert reason(found) == "ShortNamesConflict"
    assert found.status.accepted_names.short_names == ()
    established = find(found, "Established")
    assert established is not None
    assert established.status == "True"


@pytest.mark.parametrize(
    ("annotation", "state"),
    [
        ("", "MissingAnnotation"),
        ("unapproved, for now", "UnapprovedAnnotation"),
        ("https://example.com/1", "ApprovedAnnotation"),
        ("yes", "InvalidAnnotation"),
        ("/path", "InvalidAnnotation"),
    ],
)
def test_approval(annotation: str, state: str) -> None:
    assert approval.approval_state({approval.ANNOTATION: annotation})[0] == state


def test_versions_are_sorted_by_priority() -> None:
    given = ["foo1", "v1alpha1", "v1beta1", "v1", "v10", "v2", "v1beta2", "v11alpha2", "bar", "v3beta1"]
    expected = ["v10", "v2", "v1", "v3beta1", "v1beta2", "v1beta1", "v11alpha2", "v1alpha1", "bar", "foo1"]
    assert sorted(given, key=version_sort_key) == expected


# Paths of columns


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".a.b", [1]),
        (".a['b']", [1]),
        (".a.x", []),
        (".list[0].n", ["x"]),
        (".list[-1].n", ["y"]),
        (".list[*].n", ["x", "y"]),
        (".list[?(@.n=='y')].v", [2]),
        ('.list[?(@.v>1)].n', ["y"]),
        (".list[?(@.v)].n", ["x", "y"]),
        (".list[0:1].n", ["x"]),
        (r".odd\.name", ["z"]),
        (".a.b.c", []),
        (".", [None]),
    ],
)  # fmt: skip
def test_json_paths(path: str, found: Json) -> None:
    data = {"a": {"b": 1}, "list": [{"n": "x", "v": 1}, {"n": "y", "v": 2}], "odd.name": "z"}
    assert jsonpath.compile(path)(data) == ([data] if path == "." else found)


@pytest.mark.parametrize("path", ["a", ".a[", ".a[?(", ".a[?(@.b=c)]", "{.a}"])
def test_invalid_json_paths(path: str) -> None:
    with pytest.raises(jsonpath.InvalidJSONPath):
        jsonpath.compile(path)


# OpenAPI v2


def test_openapi_v2_omits_what_it_cannot_express() -> None:
    meta = {"$ref": "ObjectMeta"}
    schema = {
        "type": "object",
        "properties": {
            "free": {"type": "object", PRESERVE: True, "properties": {"a": STRING}},
            "null": {"type": "array", "items": STRING, "nullable": True},
            "some": {**STRING, "anyOf": [{"minLength": 1}]},
            "pod": {"type": "object", EMBEDDED: True, "properties": {"spec": STRING}},
        },
    }
    common = {"apiVersion": STRING, "kind": STRING, "metadata": {"description": "d", **meta}}
    made = published_model(schema, common, v2=True)["properties"]
    assert made["free"] == {PRESERVE: True}
    assert made["null"] == {}
    assert made["some"] == STRING
    assert made["metadata"] == common["metadata"]
    assert made["pod"]["properties"]["metadata"] == meta
    assert made["pod"]["required"] == ["kind", "apiVersion"]
    assert published_model({"type": "object", PRESERVE: True}, common, v2=True) == {"type": "object"}
    assert published_model(schema, common, v2=False)["properties"]["null"]["nullable"] is True
