"""Patches on plain data: situation → result, for the three patch types."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from volplane.api import codec, kinds
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.errors import BadRequest, Invalid, TooLarge, UnsupportedMediaType
from volplane.apiserver.patch import JSON, MERGE, STRATEGIC, apply_patch

POD, NODE = kinds.of(Pod), kinds.of(Node)
VOLUME, CLAIM = kinds.of(PersistentVolume), kinds.of(PersistentVolumeClaim)


def patch(content: str, current: Any, body: Any, kind: kinds.Kind = POD) -> Any:
    return apply_patch(kind, content, current, msgspec.json.encode(body))


JSON_PATCHES: dict[str, tuple[Any, list[Any], Any]] = {
    "add sets a member": ({}, [{"op": "add", "path": "/a", "value": 1}], {"a": 1}),
    "add overwrites": ({"a": 2}, [{"op": "add", "path": "/a", "value": 1}], {"a": 1}),
    "add inserts": ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
    "dash appends": ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
    "minus one appends": ({"a": [1]}, [{"op": "add", "path": "/a/-1", "value": 2}], {"a": [1, 2]}),
    "remove from the end": ({"a": [1, 2]}, [{"op": "remove", "path": "/a/-1"}], {"a": [1]}),
    "replace of an absent member sets it": (
        {},
        [{"op": "replace", "path": "/status", "value": {"ready": False}}],
        {"status": {"ready": False}},
    ),
    "replace by null": (
        {"metadata": {"finalizers": ["a"]}},
        [{"op": "replace", "path": "/metadata/finalizers", "value": None}],
        {"metadata": {"finalizers": None}},
    ),
    "test of null passes on an absent member": (
        {"metadata": {}},
        [
            {"op": "test", "path": "/metadata/finalizers", "value": None},
            {"op": "add", "path": "/metadata/finalizers", "value": ["external-attacher/d"]},
        ],
        {"metadata": {"finalizers": ["external-attacher/d"]}},
    ),
    "test without a value passes on an absent member": ({"a": 1}, [{"op": "test", "path": "/b"}], {"a": 1}),
    "test compares deeply": (
        {"a": {"b": [1, {"c": "x"}]}},
        [{"op": "test", "path": "/a", "value": {"b": [1, {"c": "x"}]}}],
        {"a": {"b": [1, {"c": "x"}]}},
    ),
    "escapes": ({"a/b": {"c~d": 1}}, [{"op": "remove", "path": "/a~1b/c~0d"}], {"a/b": {}}),
    "move": ({"a": 1}, [{"op": "move", "from": "/a", "path": "/b"}], {"b": 1}),
    "copy": ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
    "copy of an absent member is null": (
        {"a": 1},
        [{"op": "copy", "from": "/b", "path": "/c"}],
        {"a": 1, "c": None},
    ),
    "the whole document": ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
}


@pytest.mark.parametrize("situation", JSON_PATCHES)
def test_json_patch(situation: str) -> None:
    current, operations, result = JSON_PATCHES[situation]
    before = msgspec.json.encode(current)
    assert patch(JSON, current, operations) == result
    assert msgspec.json.encode(current) == before


JSON_FAILURES: dict[str, tuple[Any, list[Any]]] = {
    "test of another value": ({"a": 1}, [{"op": "test", "path": "/a", "value": 2}]),
    "one is not one point zero": ({"a": 1}, [{"op": "test", "path": "/a", "value": 1.0}]),
    "one is not true": ({"a": 1}, [{"op": "test", "path": "/a", "value": True}]),
    "test of null on a set member": ({"a": 1}, [{"op": "test", "path": "/a", "value": None}]),
    "remove of an absent member": ({}, [{"op": "remove", "path": "/a"}]),
    "add below an absent parent": ({}, [{"op": "add", "path": "/a/b", "value": 1}]),
    "add below a scalar": ({"a": 1}, [{"op": "add", "path": "/a/b", "value": 1}]),
    "replace of an absent element": ({"a": [1]}, [{"op": "replace", "path": "/a/1", "value": 1}]),
    "add past the end": ({"a": [1]}, [{"op": "add", "path": "/a/2", "value": 1}]),
    "no index": ({"a": [1]}, [{"op": "replace", "path": "/a/x", "value": 1}]),
    "a path without slash": ({"a": 1}, [{"op": "remove", "path": "a"}]),
    "no path": ({"a": 1}, [{"op": "remove"}]),
    "unknown operation": ({"a": 1}, [{"op": "put", "path": "/a"}]),
    "an object turned into a list": ({"a": 1}, [{"op": "replace", "path": "", "value": []}]),
}


@pytest.mark.parametrize("situation", JSON_FAILURES)
def test_a_failing_json_patch_is_unprocessable(situation: str) -> None:
    current, operations = JSON_FAILURES[situation]
    with pytest.raises(Invalid) as caught:
        patch(JSON, current, operations)
    assert caught.value.message == "the server rejected our request due to an error in our request"


def test_json_patch_limits_and_format() -> None:
    with pytest.raises(TooLarge, match="maximum operations in a JSON patch is 10000, got 10001"):
        patch(JSON, {}, [{"op": "test", "path": "/a"}] * 10001)
    with pytest.raises(BadRequest):
        patch(JSON, {}, {"op": "add"})
    with pytest.raises(BadRequest):
        apply_patch(POD, JSON, {}, b"[")
    findings: list[str] = []
    body = b'[{"op":"test","path":"/a","path":"/b","sure":1}]'
    apply_patch(POD, JSON, {}, body, findings=findings)
    assert findings == ['json patch duplicate field "[0].path"', 'json patch unknown field "[0].sure"']


MERGE_PATCHES: dict[str, tuple[Any, Any, Any]] = {
    "null deletes": ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
    "objects merge": ({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
    "lists replace": ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
    "a new object loses its nulls": ({}, {"a": {"b": None, "c": {"d": None}}}, {"a": {"c": {}}}),
    "an object replaces a scalar": ({"a": 1}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
    "a scalar replaces an object": ({"a": {"b": 1}}, {"a": 1}, {"a": 1}),
}


@pytest.mark.parametrize("situation", MERGE_PATCHES)
def test_merge_patch(situation: str) -> None:
    current, body, result = MERGE_PATCHES[situation]
    assert patch(MERGE, current, body) == result


def test_merge_patch_needs_an_object() -> None:
    for body in (b"[]", b"1", b"null", b"{"):
        with pytest.raises(BadRequest):
            apply_patch(POD, MERGE, {}, body)


def spec(*containers: Any, **more: Any) -> Any:
    return {"spec": {"containers": list(containers), **more}}


A, B, C = ({"name": n, "image": f"{n}:1"} for n in "abc")

STRATEGIC_PATCHES: dict[str, tuple[kinds.Kind, Any, Any, Any]] = {
    "a container is merged by name": (
        POD,
        spec(A, B),
        spec({"name": "b", "image": "b:2"}),
        spec(A, {"name": "b", "image": "b:2"}),
    ),
    "a new container goes before those the patch does not name": (POD, spec(A), spec(B), spec(B, A)),
    "an element is deleted by name": (POD, spec(A, B), spec({"name": "a", "$patch": "delete"}), spec(B)),
    "a list is replaced whole": (POD, spec(A, B), spec(C, {"$patch": "replace"}), spec(C)),
    "a map is replaced": (
        POD,
        {"metadata": {"labels": {"a": "1", "b": "2"}}},
        {"metadata": {"labels": {"$patch": "replace", "c": "3"}}},
        {"metadata": {"labels": {"c": "3"}}},
    ),
    "a map is cleared": (
        POD,
        {"metadata": {"labels": {"a": "1"}, "name": "p"}},
        {"metadata": {"labels": {"$patch": "delete"}}},
        {"metadata": {"labels": {}, "name": "p"}},
    ),
    "null deletes": (
        POD,
        {"metadata": {"labels": {"a": "1", "b": "2"}}},
        {"metadata": {"labels": {"a": None}}},
        {"metadata": {"labels": {"b": "2"}}},
    ),
    "the order directive sorts, and what only the server has keeps its place": (
        POD,
        spec(A, C, B),
        spec(
            {"name": "b", "image": "b:2"}, **{"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}
        ),
        spec(C, {"name": "b", "image": "b:2"}, A),
    ),
    "the order directive alone": (
        POD,
        spec(A, B),
        {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}},
        spec(B, A),
    ),
    "a list that was not there": (
        POD,
        {"spec": {}},
        spec(A, **{"$setElementOrder/containers": [{"name": "a"}]}),
        spec(A),
    ),
    "the source of a volume changes": (
        POD,
        {"spec": {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]}},
        {
            "spec": {
                "volumes": [{"$retainKeys": ["name", "hostPath"], "name": "v", "hostPath": {"path": "/x"}}]
            }
        },
        {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}},
    ),
    "finalizers are a set": (
        VOLUME,
        {"metadata": {"finalizers": ["a", "b"]}},
        {"metadata": {"finalizers": ["c", "a"]}},
        {"metadata": {"finalizers": ["c", "a", "b"]}},
    ),
    "a finalizer is removed": (
        VOLUME,
        {"metadata": {"finalizers": ["a", "b"]}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["b"]}},
        {"metadata": {"finalizers": ["b"]}},
    ),
    "deleting from a list that is not there": (
        VOLUME,
        {"metadata": {"name": "v"}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}},
        {"metadata": {"name": "v"}},
    ),
    "conditions merge by type": (
        CLAIM,
        {"status": {"conditions": [{"type": "X", "status": "True"}]}},
        {"status": {"conditions": [{"type": "Resizing", "status": "True"}]}},
        {"status": {"conditions": [{"type": "Resizing", "status": "True"}, {"type": "X", "status": "True"}]}},
    ),
    "taints are replaced": (
        NODE,
        {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
        {"spec": {"taints": [{"key": "b", "effect": "NoSchedule"}]}},
        {"spec": {"taints": [{"key": "b", "effect": "NoSchedule"}]}},
    ),
    "ports merge by number": (
        POD,
        spec({"name": "a", "ports": [{"containerPort": 80}]}),
        spec({"name": "a", "ports": [{"containerPort": 80, "name": "web"}, {"containerPort": 81}]}),
        spec({"name": "a", "ports": [{"containerPort": 80, "name": "web"}, {"containerPort": 81}]}),
    ),
    "a delete directive for nothing": (
        POD,
        {"metadata": {}},
        {"metadata": {"labels": {"$patch": "delete"}}},
        {"metadata": {}},
    ),
    "nulls in what is new are dropped": (
        POD,
        {},
        {"metadata": {"annotations": {"a": "1", "b": None}}},
        {"metadata": {"annotations": {"a": "1"}}},
    ),
}


@pytest.mark.parametrize("situation", STRATEGIC_PATCHES)
def test_strategic_merge_patch(situation: str) -> None:
    kind, current, body, result = STRATEGIC_PATCHES[situation]
    before = msgspec.json.encode(current)
    assert patch(STRATEGIC, current, body, kind) == result
    assert msgspec.json.encode(current) == before


def test_patches_work_on_what_objects_become() -> None:
    pod = msgspec.convert({"spec": {"containers": [A, B]}, "metadata": {"finalizers": ["x/y"]}}, Pod)
    current = codec.to_dict(pod)
    image = spec({"name": "b", "image": "b:2"}, **{"$setElementOrder/containers": [{"name": "b"}]})
    patched = patch(STRATEGIC, current, image)
    assert [c["image"] for c in patched["spec"]["containers"]] == ["a:1", "b:2"]
    gone = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x/y"]}}
    assert patch(STRATEGIC, current, gone)["metadata"]["finalizers"] == []
    removed = patch(JSON, current, [{"op": "remove", "path": "/spec/containers/0"}])
    assert [c["name"] for c in removed["spec"]["containers"]] == ["b"]
    assert codec.to_dict(pod) == current


STRATEGIC_FAILURES: dict[str, tuple[Any, str]] = {
    "no merge key": (spec({"image": "x"}), r"map: map\[image:x\] does not contain declared merge key: name"),
    "unknown directive": ({"metadata": {"labels": {"$patch": "keep"}}}, "unknown patch type: keep"),
    "retainKeys misses a key": (
        {"metadata": {"labels": {"$retainKeys": ["b"], "a": "1"}}},
        "invalid patch format of retainKeys",
    ),
    "order misses an element": (
        spec(A, **{"$setElementOrder/containers": [{"name": "b"}]}),
        "The order in patch list",
    ),
    "order of an unknown list": (
        {"spec": {"$setElementOrder/nonsense": ["b"]}},
        "unable to find api field in struct",
    ),
    "mixed elements": (spec("x"), "list element types are not identical"),
}


@pytest.mark.parametrize("situation", STRATEGIC_FAILURES)
def test_a_bad_strategic_merge_patch_is_refused(situation: str) -> None:
    body, words = STRATEGIC_FAILURES[situation]
    with pytest.raises(BadRequest, match=words):
        patch(STRATEGIC, {"metadata": {"labels": {"z": "1"}}, "spec": {"containers": [A]}}, body)


def test_media_types() -> None:
    with pytest.raises(UnsupportedMediaType, match="application/json-patch"):
        apply_patch(POD, "application/json", {}, b"{}")
    with pytest.raises(UnsupportedMediaType, match="is not accepted here"):
        apply_patch(POD, "application/apply-patch+yaml", {}, b"{}")
    custom = msgspec.structs.replace(POD, struct=None)
    with pytest.raises(UnsupportedMediaType):
        apply_patch(custom, STRATEGIC, {}, b"{}")
    assert apply_patch(POD, MERGE + "; charset=utf-8", {}, b"{}") == {}


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=12,
)
objects = st.dictionaries(st.sampled_from("abcd"), plain, max_size=4)


@given(objects, objects)
def test_a_merge_patch_changes_nothing_when_applied_again(current: Any, body: Any) -> None:
    once = patch(MERGE, current, body)
    assert patch(MERGE, once, body) == once


containers = st.lists(st.sampled_from("abcdef"), unique=True, max_size=6)


@given(containers, containers)
def test_a_strategic_merge_keeps_what_it_does_not_name(held: list[str], named: list[str]) -> None:
    current = spec(*({"name": n, "image": "old"} for n in held))
    body = spec(*({"name": n, "image": "new"} for n in named))
    result = patch(STRATEGIC, current, body)["spec"]["containers"]
    assert {c["name"]: c["image"] for c in result} == {n: "old" for n in held} | {n: "new" for n in named}
    assert len(result) == len(set(held) | set(named))
    assert [c["name"] for c in result if c["name"] in named] == named
    alone = [n for n in held if n not in named]
    assert [c["name"] for c in result if c["name"] in alone] == alone
    assert patch(STRATEGIC, {"spec": {"containers": result}}, body)["spec"]["containers"] == result


@given(containers, containers, st.permutations("abcdef"))
def test_the_order_directive_orders_what_it_lists(held: list[str], named: list[str], order: Any) -> None:
    listed = [n for n in order if n in named or n in held[:2]]
    body = spec(
        *({"name": n} for n in order if n in named),
        **{"$setElementOrder/containers": [{"name": n} for n in listed]},
    )
    result = patch(STRATEGIC, spec(*({"name": n} for n in held)), body)["spec"]["containers"]
    assert [c["name"] for c in result if c["name"] in listed] == [n for n in listed if n in {*held, *named}]
    assert {c["name"] for c in result} == {*held, *named}
