"""Field ownership. The samples contain the results of upstream's field manager for the same steps."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volplane.api import kinds
from volplane.api.apps import Deployment
from volplane.api.core import ConfigMap, Pod
from volplane.api.errors import Conflict
from volplane.api.kinds import Kind
from volplane.api.meta import ManagedFieldsEntry
from volplane.apiserver import decode
from volplane.apiserver.apply import document, fields, lastapplied, managed, merging, types
from volplane.apiserver.apply.fields import InvalidFieldSet
from volplane.apiserver.apply.ownership import Ownership, ownership_of

SAMPLES = json.loads(Path(__file__).with_name("apply.samples.json").read_text())
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STAMP = "2026-01-02T03:04:05Z"


def ownership(kind: Kind, schema: Any = None) -> Ownership:
    return ownership_of(kind, status=kind.has_status, status_metadata=kind.status_metadata, schema=schema)


class FieldManagerRun:
    """One object and what its managers do to it, without a server."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.rules = ownership(kind)
        self.live: Any = None
        self.entries: managed.Entries = ()

    def to_object(self, data: dict[str, Any]) -> Any:
        assert self.kind.type is not None
        return decode.convert_struct(self.kind.type, copy.deepcopy(data))[0]

    def managed_fields(self) -> managed.Managed:
        return managed.read(self.entries)

    def update(self, manager: str, data: dict[str, Any], below: str = "") -> None:
        new = self.to_object(data)
        if self.live is not None and not self.entries:
            self.live = new
            return
        old = self.rules.empty() if self.live is None else self.live
        changed, removed = (self.rules.filter_ownable(f, below) for f in self.rules.differ(old, new))
        owner = managed.updater(manager, self.kind.api_version, below)
        self.live = new
        self.entries = managed.update_entries(self.entries, owner, NOW, changed, removed)

    def apply(self, manager: str, data: dict[str, Any], *, force: bool = False, below: str = "") -> None:
        old = self.rules.empty() if self.live is None else self.live
        owners = self.managed_fields()
        version = self.kind.api_version
        if self.live is not None and not owners:
            everything = self.rules.filter_ownable(self.rules.differ(self.rules.empty(), old)[0], below)
            first = managed.updater(managed.BEFORE_FIRST_APPLY, version, below)
            owners = managed.read(managed.first_entries(first, NOW, everything))
        asked = merging.ApplyRequest(
            copy.deepcopy(data), managed.applier(manager, below), version, NOW, force
        )
        plain = msgspec.json.decode(msgspec.json.encode(old))
        try:
            made = merging.apply(self.rules, self.to_object, plain, old, owners, asked)
        except merging.ApplyConflict as clash:
            raise clash.to_conflict() from clash
        self.live, self.entries = made.obj, managed.write(made.managed, self.entries)

    def owners(self) -> list[Any]:
        found = [[e.manager, e.operation, e.subresource, fields.read(e.fields_v1)] for e in self.entries]
        return sorted(found, key=lambda e: (e[1], e[0], e[2]))

    def owned_by(self, manager: str) -> list[str]:
        mine = [fields.read(e.fields_v1) for e in self.entries if e.manager == manager]
        return [path for owned in mine for path in fields.member_paths(owned)]


@pytest.mark.parametrize("sample", SAMPLES, ids=[f"{s['kind']}-{at}" for at, s in enumerate(SAMPLES)])
def test_owners_after_each_step_are_those_of_upstream(sample: dict[str, Any]) -> None:
    kind = kinds.by_kind(sample["apiVersion"], sample["kind"])
    assert kind is not None
    run = FieldManagerRun(kind)
    for step in sample["steps"]:
        then, below = step["then"], step.get("subresource", "")
        if step["op"] == "untracked":
            run.live = run.to_object(step["object"])
        elif step["op"] != "apply":
            run.update(step["manager"], step["object"], below)
        elif "conflicts" in then:
            with pytest.raises(Conflict) as refused:
                run.apply(step["manager"], step["object"], below=below)
            assert sorted([c.message, c.field] for c in refused.value.causes) == then["conflicts"]
            continue
        else:
            run.apply(step["manager"], step["object"], force=step.get("force", False), below=below)
        assert run.owners() == then["owners"]
        assert run.live == run.to_object(then["object"])


def test_results_of_large_field_sets_are_not_cached() -> None:
    run = FieldManagerRun(kinds.of(ConfigMap))
    before = managed._move_fields.cache_info()
    data = {f"{'x' * 50}{n}": "" for n in range(managed.MAX_CACHED // 50)}
    run.update("one", {"metadata": {"name": "c"}, "data": data})
    run.update("two", {"metadata": {"name": "c"}, "data": {**data, "own": "1"}})
    assert managed._move_fields.cache_info() == before
    assert run.owned_by("two") == [".data.own"]


PROTOBUF = json.loads(Path(__file__).with_name("protobuf.samples.json").read_text())


@pytest.mark.parametrize("sample", PROTOBUF, ids=[s["name"] for s in PROTOBUF])
def test_a_new_object_is_what_it_has_more_than_an_empty_one(sample: dict[str, Any]) -> None:
    kind = kinds.by_kind(sample["json"]["apiVersion"], sample["json"]["kind"])
    if kind is None:
        return  # options have no owners
    obj, _ = decode.decode_body(kind, json.dumps(sample["json"]).encode(), decode.JSON)
    rules = ownership(kind)
    assert rules.fields_of_new(obj) == rules.differ(rules.empty(), obj)[0]


# Conflicts


def deployment(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "d"}, "spec": spec}


def test_a_value_under_another_owner_is_a_conflict() -> None:
    run = FieldManagerRun(kinds.of(Deployment))
    run.apply("a", deployment(replicas=1, paused=True))
    with pytest.raises(Conflict) as refused:
        run.apply("b", deployment(replicas=2))
    error = refused.value
    assert error.message == 'Apply failed with 1 conflict: conflict with "a": .spec.replicas'
    assert error.details == {
        "causes": [
            {"reason": "FieldManagerConflict", "message": 'conflict with "a"', "field": ".spec.replicas"}
        ]
    }
    run.apply("b", deployment(replicas=2), force=True)
    assert run.owned_by("a") == [".spec.paused"]
    assert run.owned_by("b") == [".spec.replicas"]


def test_many_conflicts_are_listed_by_manager() -> None:
    run = FieldManagerRun(kinds.of(Deployment))
    run.update("editor", deployment(replicas=1, paused=True))
    run.update("scaler", deployment(replicas=2, paused=True), below="scale")
    with pytest.raises(Conflict) as refused:
        run.apply("b", deployment(replicas=3, paused=False, strategy={"type": "Recreate"}))
    assert refused.value.message == (
        'Apply failed with 2 conflicts: conflicts with "editor" using apps/v1:\n- .spec.paused\n'
        'conflicts with "scaler" with subresource "scale" using apps/v1:\n- .spec.replicas'
    )


def test_a_shared_value_stays_until_its_last_manager_drops_it() -> None:
    run = FieldManagerRun(kinds.of(Deployment))
    run.apply("a", deployment(replicas=1))
    run.apply("b", deployment(replicas=1))
    assert run.owned_by("a") == run.owned_by("b") == [".spec.replicas"]
    run.apply("a", deployment(paused=True))
    assert run.live.spec.replicas == 1
    run.apply("b", deployment(paused=True))
    assert run.live.spec.replicas is None


def test_nothing_changes_when_the_same_is_applied_again() -> None:
    run = FieldManagerRun(kinds.of(Deployment))
    run.apply("a", deployment(replicas=1))
    before, obj = run.entries, run.live
    run.apply("a", deployment(replicas=1))
    assert all(a is b for a, b in zip(run.entries, before, strict=True))
    assert run.live == obj


def test_what_others_wrote_below_a_dropped_item_keeps_the_item() -> None:
    run = FieldManagerRun(kinds.of(Pod))
    one, two = {"name": "a", "image": "x"}, {"name": "b", "image": "x"}
    run.apply("m", {"spec": {"containers": [one, two]}})
    data = msgspec.json.decode(msgspec.json.encode(run.live))
    data["spec"]["containers"][1]["workingDir"] = "/w"
    run.update("n", data)
    run.apply("m", {"spec": {"containers": [one]}})
    assert [c.name for c in run.live.spec.containers] == ["a"]


def test_an_untracked_object_gets_a_before_first_apply_manager() -> None:
    run = FieldManagerRun(kinds.of(ConfigMap))
    run.live = run.to_object({"data": {"x": "1"}})
    run.update("ignored", {"data": {"x": "1", "y": "1"}})
    assert run.entries == ()
    with pytest.raises(Conflict, match=r'conflict with "before-first-apply" using v1: \.data\.x$'):
        run.apply("a", {"data": {"x": "2"}})


# Entries


def test_old_update_managers_are_merged_into_ancient_changes() -> None:
    run = FieldManagerRun(kinds.of(ConfigMap))
    for at in range(15):
        run.update(f"m{at:02}", {"data": {f"k{n}": "1" for n in range(at + 1)}})
    names = [e.manager for e in run.entries]
    assert len(names) == managed.LIMIT
    assert managed.ANCIENT in names
    assert ".data.k0" in run.owned_by(managed.ANCIENT)
    assert run.owned_by("m14") == [".data.k14"]


def test_entries_of_one_manager_differ_by_operation_and_subresource() -> None:
    run = FieldManagerRun(kinds.of(Pod))
    run.update("m", {"spec": {"nodeName": "n"}})
    run.update("m", {"spec": {"nodeName": "n"}, "status": {"phase": "Running"}}, below="status")
    run.apply("m", {"spec": {"hostNetwork": True}})
    assert [(e.operation, e.subresource) for e in run.entries] == [
        ("Apply", ""),
        ("Update", ""),
        ("Update", "status"),
    ]
    assert {e.time for e in run.entries} == {STAMP}
    assert {(e.api_version, e.fields_type) for e in run.entries} == {("v1", "FieldsV1")}


def test_the_main_endpoint_does_not_own_status_nor_status_the_spec() -> None:
    rules = ownership(kinds.of(Pod))
    found: dict[str, Any] = {"f:spec": {"f:nodeName": {}}, "f:status": {"f:phase": {}}}
    assert rules.filter_ownable(found) == {"f:spec": {"f:nodeName": {}}}
    assert rules.filter_ownable(found, "status") == {"f:status": {"f:phase": {}}}


def test_a_client_may_send_managed_fields_and_invalid_ones_are_rejected() -> None:
    entry = ManagedFieldsEntry(
        manager="m",
        operation="Update",
        api_version="v1",
        fields_type="FieldsV1",
        fields_v1=msgspec.Raw(b'{"f:data":{"f:x":{},".":{}},"k:{\\"name\\": \\"a\\"}":{},"z:later":{}}'),
    )
    (spelled,) = managed.read_foreign([entry])
    assert fields.read(spelled.fields_v1) == {"f:data": {".": {}, "f:x": {}}, 'k:{"name":"a"}': {}}
    for wrong in (
        ManagedFieldsEntry(manager="m", operation="Delete", api_version="v1", fields_type="FieldsV1"),
        ManagedFieldsEntry(manager="m", operation="Update", fields_type="FieldsV1"),
        ManagedFieldsEntry(manager="m", operation="Update", api_version="v1"),
        msgspec.structs.replace(entry, fields_v1=msgspec.Raw(b'{"x":{}}')),
        msgspec.structs.replace(entry, fields_v1=msgspec.Raw(b'{"k:[]":{}}')),
        msgspec.structs.replace(entry, fields_v1=msgspec.Raw(b"7")),
        msgspec.structs.replace(entry, fields_v1=msgspec.Raw(b"{")),
    ):
        with pytest.raises(InvalidFieldSet):
            managed.read_foreign([wrong])
    assert managed.is_reset((ManagedFieldsEntry(),))
    assert not managed.is_reset((entry,))


# Sets

KEYS = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"y"'])


def trees(depth: int = 3) -> st.SearchStrategy[Any]:
    empty: st.SearchStrategy[Any] = st.just({})
    inner = empty if depth == 0 else st.one_of(empty, st.deferred(lambda: branches(depth - 1)))
    return st.dictionaries(KEYS, inner, max_size=3).map(lambda d: dict(sorted(d.items())))


def branches(depth: int) -> st.SearchStrategy[Any]:
    return st.tuples(trees(depth), st.booleans()).map(lambda t: {".": {}, **t[0]} if t[1] and t[0] else t[0])


def members(of: dict[str, Any]) -> set[str]:
    return set(fields.member_paths(of))


@given(trees(), trees())
@settings(max_examples=200, deadline=None)
def test_set_operations_on_field_sets(one: dict[str, Any], other: dict[str, Any]) -> None:
    a, b = members(one), members(other)
    assert members(fields.union(one, other)) == a | b
    assert members(fields.difference(one, other)) == a - b
    assert members(fields.intersection(one, other)) == a & b
    assert fields.is_subset(one, other) == (a <= b)
    assert fields.read(fields.write(one)) == one
    assert fields.read_foreign(bytes(fields.write(one))) == one


# Types and documents


def test_errors_are_reported_with_their_paths() -> None:
    of = ownership(kinds.of(Deployment)).type
    pod = {"containers": [{"name": "a", "colour": "red"}, {"name": "b"}, {"name": "b"}]}
    assert document.find_faults(of, {"spec": {"foo": 1, "template": {"spec": pod}}}) == [
        ".spec.foo: field not declared in schema",
        '.spec.template.spec.containers[name="a"].colour: field not declared in schema',
        '.spec.template.spec.containers: duplicate entries for key [name="b"]',
    ]
    odd = {"spec": {"template": {"spec": {"containers": ["x"]}}}}
    assert document.find_faults(of, odd)[0].startswith(".spec.template.spec.containers: associative list")


def test_a_missing_key_counts_as_its_default() -> None:
    of = ownership(kinds.of(Pod)).type
    ports = [{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}]
    found = document.collect(of, {"spec": {"containers": [{"name": "a", "ports": ports}]}})
    keys = found["f:spec"]["f:containers"]['k:{"name":"a"}']["f:ports"]
    assert list(keys) == [
        'k:{"containerPort":80,"protocol":"TCP"}',
        'k:{"containerPort":80,"protocol":"UDP"}',
    ]


def test_applied_items_keep_their_order_among_those_of_others() -> None:
    of = ownership(kinds.of(Pod)).type

    def merge_lists(live: str, applied: str) -> str:
        def spec(names: str) -> dict[str, Any]:
            return {"spec": {"containers": [{"name": n} for n in names]}}

        made = document.merge(of, spec(live), spec(applied))
        return "".join(c["name"] for c in made["spec"]["containers"])

    assert merge_lists("abc", "b") == "abc"
    assert merge_lists("abc", "ca") == "bca"
    assert merge_lists("ab", "xb") == "axb"
    assert merge_lists("", "ab") == "ab"
    assert merge_lists("ab", "") == "ab"


SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "size": {"type": "integer"},
                "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "parts": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["id"],
                    "items": {
                        "type": "object",
                        "properties": {"id": {"type": "string", "default": "z"}, "n": {"type": "integer"}},
                    },
                },
                "plain": {"type": "array", "items": {"type": "string"}},
                "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {}}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "port": {"x-kubernetes-int-or-string": True},
            },
        }
    },
}


def test_custom_resources_are_owned_by_their_schema() -> None:
    of = types.of_custom(SCHEMA)
    spec = {
        "size": 1,
        "tags": ["b", "a"],
        "parts": [{"id": "x", "n": 1}, {"n": 2}],
        "plain": ["q"],
        "whole": {"a": 1},
        "free": {"deep": {"er": 1}, "list": [1]},
        "labels": {"l": "1"},
        "port": "http",
    }
    assert document.collect(of, {"metadata": {"labels": {"l": "1"}}, "spec": spec}) == {
        "f:metadata": {"f:labels": {"f:l": {}}},
        "f:spec": {
            "f:free": {"f:deep": {".": {}, "f:er": {}}, "f:list": {}},
            "f:labels": {"f:l": {}},
            "f:parts": {
                'k:{"id":"x"}': {".": {}, "f:id": {}, "f:n": {}},
                'k:{"id":"z"}': {".": {}, "f:n": {}},
            },
            "f:plain": {},
            "f:port": {},
            "f:size": {},
            "f:tags": {'v:"a"': {}, 'v:"b"': {}},
            "f:whole": {},
        },
    }
    assert document.find_faults(of, {"spec": {"colour": 1, "free": {"any": 1}}}) == [
        ".spec.colour: field not declared in schema"
    ]


def test_without_a_schema_maps_are_granular_and_lists_atomic() -> None:
    of = types.of_custom(None)
    assert document.collect(of, {"spec": {"a": {"b": [1, 2]}, "c": None}}) == {
        "f:spec": {"f:a": {".": {}, "f:b": {}}, "f:c": {}}
    }
    rules = ownership(Kind(None, "example.com", "v1", "Thing", "things"))
    old = {"kind": "Thing", "metadata": {"name": "a", "labels": {"x": "1"}}, "spec": {"a": {"b": [1]}}}
    new = {"kind": "Thing", "metadata": {"name": "a", "uid": "u"}, "spec": {"a": {"b": [1, 2]}, "c": 1}}
    changed, removed = rules.differ(old, new)
    assert changed == {"f:spec": {"f:a": {"f:b": {}}, "f:c": {}}}
    assert removed == {"f:metadata": {"f:labels": {".": {}, "f:x": {}}}}


# kubectl's way from client-side apply


def test_fields_of_client_side_apply_are_kubectls_own() -> None:
    of = ownership(kinds.of(ConfigMap)).type
    last = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"x": "1", "y": "1"}}
    live = {
        "metadata": {"annotations": {lastapplied.ANNOTATION: json.dumps(last)}},
        "data": {"x": "1", "y": "2"},
    }
    assert lastapplied.fields_still_applied(of, "v1", live) == {"f:data": {"f:x": {}}}
    assert lastapplied.fields_still_applied(of, "v2", live) == {}
    assert lastapplied.fields_still_applied(of, "v1", {"data": {}}) == {}
    broken = {"metadata": {"annotations": {lastapplied.ANNOTATION: "{"}}}
    assert lastapplied.fields_still_applied(of, "v1", broken) == {}
    renewed = lastapplied.update_annotation(live, {"kind": "ConfigMap", "data": {"x": "3"}})
    assert renewed["metadata"]["annotations"][lastapplied.ANNOTATION] == (
        '{"data":{"x":"3"},"kind":"ConfigMap","metadata":{}}\n'
    )
    assert lastapplied.update_annotation({"data": {}}, {}) == {"data": {}}
