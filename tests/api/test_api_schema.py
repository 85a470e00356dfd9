"""Every field of every kind, against the published schema; quantities, selectors and names."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

import pytest

from volplane.api import codec, kinds, names, quantity, selectors
from volplane.api.core import ConfigMap, Pod, Secret
from volplane.api.meta import LabelSelector, LabelSelectorRequirement, ObjectMeta
from volplane.api.object import Field, Object, schema
from volplane.api.published_schema import message_name, package_of
from volplane.api.storage import VolumeAttachment


@cache
def load_published_schema() -> dict[str, Any]:
    """The swagger definitions of v1.35 as a package on the registry carries them."""
    where = (
        resources.files("kubernetes_validate")
        / "kubernetes-json-schema"
        / "v1.35.0-local"
        / "_definitions.json"
    )
    data: dict[str, Any] = json.loads(where.read_text())["$defs"]
    return data


def definition(kind: kinds.Kind) -> str:
    group, _, name = (kind.message or message_name(kinds.metadata_type(kind))).partition(".")
    return f"{package_of(group)}.{name}"


def _differences(ours: type[Object], name: str, path: str, seen: set[str]) -> list[str]:
    if name in seen:
        return []
    seen.add(name)
    properties = load_published_schema()[name].get("properties", {})
    mine = schema(ours)
    wrong = [
        f"{path}.{p} is missing" for p in properties if p not in mine and p not in ("kind", "apiVersion")
    ]
    wrong += [f"{path}.{p} is unknown to the schema" for p in mine if p not in properties]
    for wire, spec in properties.items():
        if wire in mine:
            wrong += _property(mine[wire], spec, f"{path}.{wire}", seen)
    return wrong


def _property(field: Field, spec: dict[str, Any], path: str, seen: set[str]) -> list[str]:
    wrong = []
    strategies = (spec.get("x-kubernetes-patch-strategy") or "").split(",")
    merge = spec.get("x-kubernetes-patch-merge-key", "") if "merge" in strategies else None
    if field.shape == "list" and field.merge_key != merge:
        wrong.append(f"{path}: merge key {field.merge_key!r}, published {merge!r}")
    kind = spec.get("x-kubernetes-list-type", "atomic")
    if field.shape == "list" and "x-kubernetes-list-type" in spec and field.list_type != kind:
        wrong.append(f"{path}: list type {field.list_type}, published {kind}")
    if field.list_type == "map" and list(field.list_keys) != spec.get(
        "x-kubernetes-list-map-keys", list(field.list_keys)
    ):
        wrong.append(f"{path}: list keys {field.list_keys}")
    if field.retain_keys != ("retainKeys" in strategies):
        wrong.append(f"{path}: retainKeys")
    inner, item = field, spec
    while inner.item is not None:
        inner, item = inner.item, item.get("items") or item.get("additionalProperties") or {}
    reference = item.get("$ref", "").removeprefix("#/$defs/")
    if inner.type is not None and reference:
        wrong += _differences(inner.type, reference, path, seen)
    return wrong


@pytest.mark.parametrize(
    "kind", kinds.ALL + kinds.SUBRESOURCE_KINDS, ids=lambda k: f"{k.api_version}/{k.kind}"
)
def test_a_kind_knows_every_published_field_and_nothing_else(kind: kinds.Kind) -> None:
    assert kind.type is not None
    assert _differences(kind.type, definition(kind), kind.kind, set()) == []


def test_what_upstream_always_writes_is_written() -> None:
    assert b'"attached":false' in codec.encode(VolumeAttachment(metadata=ObjectMeta(name="a")).status)
    assert codec.encode(Pod(metadata=ObjectMeta(name="p"))) == (
        b'{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p"}}'
    )


def test_the_stored_form_becomes_the_wire_form_by_concatenation() -> None:
    pod = Pod(metadata=ObjectMeta(name="p", namespace="n", resource_version="3"))
    stored = codec.encode_stored(pod)
    assert codec.stored_to_wire(kinds.of(Pod), stored, 7) == (
        b'{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"7","name":"p","namespace":"n"}}'
    )
    assert codec.load(Pod, stored, 7).revision == 7


def test_bytes_are_base64_on_the_wire() -> None:
    secret = codec.decode(Secret, b'{"metadata":{"name":"s"},"data":{"k":"aGk="}}')
    assert secret.data["k"] == b"hi"
    assert b'"k":"aGk="' in codec.encode(secret)
    assert codec.decode(ConfigMap, b'{"metadata":{"name":"c"},"data":{"a":"b"}}').data == {"a": "b"}


@pytest.mark.parametrize(
    ("text", "canonical", "value"),
    [
        ("1024Mi", "1Gi", 1 << 30),
        ("1.5Gi", "1536Mi", 3 << 29),
        ("0.5", "500m", 1),
        ("1000M", "1G", 10**9),
        ("1500000000", "1500M", 1500000000),
        ("1e3", "1e3", 1000),
        ("100", "100", 100),
        ("0", "0", 0),
        ("0Gi", "0", 0),
        ("-1Gi", "-1Gi", -(1 << 30)),
        ("1Ki", "1Ki", 1024),
        ("0.1", "100m", 1),
        (2, "2", 2),
        ("0.0000000001", "1n", 1),
    ],
)
def test_a_quantity_has_one_canonical_spelling(text: str | int, canonical: str, value: int) -> None:
    assert quantity.canonical(text) == canonical
    assert quantity.value(text) == value


@pytest.mark.parametrize("text", ["", "1gb", "Gi", "1 Gi", "1.2.3", "abc"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(quantity.InvalidQuantity):
        quantity.parse(text)


def test_a_size_from_a_driver_prints_in_binary_units_where_exact() -> None:
    assert quantity.from_bytes(1073741824) == "1Gi"
    assert quantity.from_bytes(1500000000) == "1500000000"


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        ("a=b", {"a": "b"}, True),
        ("a==b,c", {"a": "b"}, False),
        ("a!=b", {}, True),
        ("a in (x, y)", {"a": "y"}, True),
        ("a notin (x,y)", {"a": "y"}, False),
        ("a notin (x,y)", {}, True),
        ("!a", {"a": ""}, False),
        ("a>1", {"a": "2"}, True),
        ("a<1", {"a": "x"}, False),
        ("", {"a": "b"}, True),
    ],
)
def test_label_selectors(selector: str, labels: dict[str, str], matches: bool) -> None:
    assert selectors.LabelMatcher.parse(selector).matches(labels) is matches


@pytest.mark.parametrize("text", ["a b", "=b", "a in x", "a=b=c", "a in (x"])
def test_bad_label_selectors_are_refused(text: str) -> None:
    with pytest.raises(selectors.InvalidSelector):
        selectors.LabelMatcher.parse(text)


def test_no_selector_matches_nothing_and_an_empty_one_everything() -> None:
    assert not selectors.LabelMatcher.of(None).matches({"a": "b"})
    assert selectors.LabelMatcher.of(LabelSelector()).matches({})
    wanted = LabelSelector(match_expressions=(LabelSelectorRequirement("a", "DoesNotExist"),))
    assert not selectors.LabelMatcher.of(wanted).matches({"a": "b"})


def test_field_selectors_unescape() -> None:
    parsed = selectors.FieldMatcher.parse(r"metadata.name=a\,b,status.phase!=Failed")
    assert parsed.required_value("metadata.name") == "a,b"
    assert parsed.matches({"metadata.name": "a,b", "status.phase": "Running"})
    assert str(parsed) == r"metadata.name=a\,b,status.phase!=Failed"


def test_the_attachment_name_is_the_hash_that_all_components_derive() -> None:
    assert names.attachment_name("vol-1", "hostpath.csi.k8s.io", "node-a") == (
        "csi-5a70c5de395ccad5e79daeb27c7c4f2634b675e6e1bb2a397999a016143bc9fb"
    )
