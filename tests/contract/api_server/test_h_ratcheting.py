"""Objects whose definition becomes stricter, applied by one manager as Kubernetes' own tests do it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api_server.definitions import CRDS, STRING, Json, definition, obj

PATH = "/apis/example.com/v1/namespaces/default/widgets/w"
LOOSE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
PLACES = ("field", "struct.field", "list[0].field", "list[1].field")


def schema_version(schema: Json) -> Json:
    return {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}


def everywhere(limits: Json) -> Json:
    """A schema with the same field at four kinds of places."""
    inner = obj(key=STRING, field={**STRING, **limits}, other=STRING)
    items: Json = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key"]}
    items |= {"maxItems": 5, "items": {**inner, "required": ["key"]}}
    named = {"type": "object", "maxProperties": 5, "additionalProperties": inner}
    return obj(field={**STRING, **limits}, other=STRING, struct=inner, list=items, map=named)


def value(text: str, **more: str) -> Json:
    inner = {"field": text, **more}
    return {
        **inner,
        "struct": inner,
        "list": [{"key": "a", **inner}, {"key": "b", **inner}],
        "map": {"a": inner, "b": inner},
    }


def lists(*texts: str) -> Json:
    return {"set": list(texts), "atomic": list(texts)}


def limited_lists(limits: Json) -> Json:
    items = {"type": "array", "items": {**STRING, **limits}}
    return obj(set={**items, "x-kubernetes-list-type": "set"}, atomic=items)


async def prepare(api: Any, first: Json, then: Json) -> None:
    """An object that was applied without a schema, whose definition has got one."""
    answer = await api.post(CRDS, definition(schema_version(LOOSE)))
    assert answer.status == 201, answer.json
    assert (await apply(api, first)).status == 201
    patch = {"spec": {"versions": [schema_version(then)]}}
    answer = await api.merge(f"{CRDS}/widgets.example.com", patch)
    assert answer.status == 200, answer.json


async def apply(api: Any, config: Json, **labels: str) -> Any:
    meta = {"name": "w", "labels": labels} if labels else {"name": "w"}
    body = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": meta}
    path = f"{PATH}?fieldManager=manager"
    return await api.call("PATCH", path, {**body, **config}, type="application/apply-patch+yaml")


def rule(text: str, **more: Any) -> Json:
    return {"maxLength": 9, "x-kubernetes-validations": [{"rule": text, **more}]}


ENUM, RULE = {"enum": ["right"]}, rule("self == 'right'")


@pytest.mark.parametrize("limits", [ENUM, RULE], ids=["schema", "rule"])
async def test_unchanged_values_may_stay_where_they_can_be_matched(served: Any, limits: Json) -> None:
    async with served() as api:
        await prepare(api, value("wrong"), everywhere(limits))
        answer = await apply(api, value("wrong", other="new"), a="b")
        assert answer.status == 200, answer.json
        assert [e["manager"] for e in answer.json["metadata"]["managedFields"]] == ["manager"]


@pytest.mark.parametrize("limits", [ENUM, RULE], ids=["schema", "rule"])
async def test_changed_values_are_refused(served: Any, limits: Json) -> None:
    async with served() as api:
        await prepare(api, value("right"), everywhere(limits))
        answer = await apply(api, value("wrong"))
        assert answer.status == 422, answer.json
        named = ("map.a.field", "map.b.field") if limits is ENUM else ("map[a].field", "map[b].field")
        for place in (*PLACES, *named):
            assert place in answer.json["message"]


@pytest.mark.parametrize("limits", [ENUM, RULE], ids=["schema", "rule"])
async def test_unchanged_items_of_lists_without_keys_are_refused(served: Any, limits: Json) -> None:
    async with served() as api:
        await prepare(api, lists("wrong"), limited_lists(limits))
        answer = await apply(api, lists("wrong", "right"), a="b")
        assert answer.status == 422, answer.json
        assert "set[0]" in answer.json["message"]
        assert "atomic[0]" in answer.json["message"]


@pytest.mark.parametrize(
    "text", ["self != oldSelf", "!oldSelf.hasValue() || self != oldSelf.value()"], ids=["plain", "optional"]
)
async def test_rules_about_the_change_are_never_spared(served: Any, text: str) -> None:
    more = {"optionalOldSelf": True} if "hasValue" in text else {}
    async with served() as api:
        await prepare(api, value("old"), everywhere(rule(text, **more)))
        answer = await apply(api, value("old"), a="b")
        assert answer.status == 422, answer.json
        for place in (*PLACES, "map[a].field", "map[b].field"):
            assert place in answer.json["message"]
        assert (await apply(api, value("new"))).status == 200


async def test_lists_without_a_schema_have_an_owner(served: Any) -> None:
    async with served() as api:
        await api.post(CRDS, definition(schema_version(LOOSE)))
        config = {"list": ["a"], "empty": [], "below": {"list": ["a"]}}
        (entry,) = (await apply(api, config)).json["metadata"]["managedFields"]
        assert entry["fieldsV1"] == {"f:below": {"f:list": {}}, "f:empty": {}, "f:list": {}}
        conflict = await api.call(
            "PATCH",
            f"{PATH}?fieldManager=other",
            {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "list": ["b"]},
            type="application/apply-patch+yaml",
        )
        assert conflict.json["message"] == ('Apply failed with 1 conflict: conflict with "manager": .list')
