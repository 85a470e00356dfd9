"""Section H, objects of defined kinds: schemas at work, versions, selectors, scale, what is published."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api_server.definitions import (
    CRDS,
    INTEGER,
    STRING,
    WIDGETS,
    define,
    definition,
    error_message,
    obj,
    undefine,
    version,
    widget,
)

Json = Any
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PRESERVE = {"x-kubernetes-preserve-unknown-fields": True}
PATH = f"{CRDS}/widgets.example.com"


# Defaults


async def test_defaults_are_set_on_create_update_and_read(served: Any) -> None:
    async with served() as api:
        await define(api, version(spec=obj(size={**INTEGER, "default": 3}, colour=STRING)))
        made = await api.post(WIDGETS, widget())
        assert made.json["spec"] == {"size": 3}
        patched = await api.merge(f"{WIDGETS}/w", {"spec": {"size": None}})
        assert patched.json["spec"] == {"size": 3}
        assert patched.json["metadata"]["resourceVersion"] == made.json["metadata"]["resourceVersion"]
        nulled = await api.put(f"{WIDGETS}/w", {**made.json, "spec": {"size": None, "colour": None}})
        assert nulled.json["spec"] == {"size": 3}
        # A default that comes later is there for objects that are older.
        later = version(spec=obj(size={**INTEGER, "default": 3}, colour={**STRING, "default": "red"}))
        await api.merge(PATH, {"spec": {"versions": [later]}})
        read = await api.get(f"{WIDGETS}/w")
        assert read.json["spec"] == {"size": 3, "colour": "red"}
        assert read.json["metadata"]["resourceVersion"] == made.json["metadata"]["resourceVersion"]
        assert (await api.get(WIDGETS)).json["items"][0]["spec"] == {"size": 3, "colour": "red"}
        async with api.watch(WIDGETS) as watch:
            assert (await watch.next())["object"]["spec"] == {"size": 3, "colour": "red"}


async def test_what_a_later_schema_does_not_know_is_not_read(served: Any) -> None:
    async with served() as api:
        await define(api)
        await api.post(WIDGETS, widget(size=1, colour="red"))
        await api.merge(PATH, {"spec": {"versions": [version(spec=obj(size=INTEGER))]}})
        assert (await api.get(f"{WIDGETS}/w")).json["spec"] == {"size": 1}


# Pruning


async def test_unknown_fields_stay_where_the_schema_says_so(served: Any) -> None:
    async with served() as api:
        await define(api, version(spec=obj(free={"type": "object", **PRESERVE}, size=INTEGER)))
        given = widget(free={"a": {"b": [1]}}, gone=1)
        given["metadata"]["colour"] = "red"
        given["other"] = {}
        made = await api.post(WIDGETS, given)
        assert made.json["spec"] == {"free": {"a": {"b": [1]}}}
        assert "other" not in made.json
        assert made.warnings == [
            '299 - "unknown field \\"metadata.colour\\""',
            '299 - "unknown field \\"other\\""',
            '299 - "unknown field \\"spec.gone\\""',
        ]
        strict = await api.call(
            "PATCH",
            f"{WIDGETS}/w?fieldValidation=Strict",
            {"spec": {"gone": 1}},
            type="application/merge-patch+json",
        )
        assert strict.status == 422
        assert 'strict decoding error: unknown field "spec.gone"' in strict.json["message"]


async def test_embedded_resources_are_resources(served: Any) -> None:
    async with served() as api:
        embedded = {"type": "object", "x-kubernetes-embedded-resource": True, **PRESERVE}
        await define(api, version(spec=obj(pod=embedded)))
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "x": 1}, "spec": {"y": 1}}
        made = await api.post(WIDGETS, widget(pod=pod))
        assert made.json["spec"]["pod"] == {**pod, "metadata": {"name": "p"}}
        assert made.warnings == ['299 - "unknown field \\"spec.pod.metadata.x\\""']
        assert error_message(await api.post(WIDGETS, widget("x", pod={"kind": "Pod"}))) == (
            "spec.pod.apiVersion: Required value"
        )
        wrong = await api.post(WIDGETS, widget("x", pod={**pod, "metadata": {"labels": 1}}))
        assert wrong.status == 400


async def test_a_null_timestamp_is_nothing(served: Any) -> None:
    async with served() as api:
        await define(api)
        given = widget(size=1)
        given["metadata"]["creationTimestamp"] = None
        assert (await api.post(WIDGETS, given)).status == 201


# Validation


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"size": "a"}, '"string": spec.size in body must be of type integer: "string"'),
        ({"size": 11}, "spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10"),
        ({}, "spec.size: Required value"),
        ({"size": 1, "colour": "x"}, 'spec.colour: Unsupported value: "x": supported values: "red", "blue"'),
        ({"size": 1, "tags": ["a", "a"]}, 'spec.tags[1]: Duplicate value: "a"'),
        ({"size": 1, "rows": [{"k": "1"}, {"k": "1"}]}, 'spec.rows[1]: Duplicate value: {"k":"1"}'),
        ({"size": 1, "when": "now"}, 'spec.when in body must be of type date-time: "now"'),
        ({"size": 1, "tags": "abc"}, 'spec.tags in body must be of type array: "string"'),
    ],
)  # fmt: skip
async def test_objects_are_checked_against_the_schema(served: Any, spec: Json, words: str) -> None:
    rows = {"type": "array", "items": {**obj(k=STRING), "required": ["k"]}}
    schema = obj(
        size={**INTEGER, "maximum": 10},
        colour={**STRING, "enum": ["red", "blue"]},
        tags={"type": "array", "items": STRING, "x-kubernetes-list-type": "set"},
        rows={**rows, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]},
        when={**STRING, "format": "date-time"},
    )
    async with served() as api:
        await define(api, version(spec={**schema, "required": ["size"]}))
        answer = await api.post(WIDGETS, widget(**spec))
        assert words in error_message(answer)
        assert answer.json["details"]["kind"] == "Widget"


async def test_rules_wait_for_a_sound_object(served: Any) -> None:
    async with served() as api:
        rule = {"x-kubernetes-validations": [{"rule": "self.size > 0"}]}
        await define(api, version(spec={**obj(size=INTEGER, colour=STRING), "required": ["colour"], **rule}))
        answer = await api.post(WIDGETS, widget(size=0))
        assert error_message(answer) == (
            "[spec.colour: Required value, <nil>: Invalid value: null: some validation rules were not "
            "checked because the object was invalid; correct the existing errors to complete validation]"
        )


async def test_what_was_wrong_before_may_stay(served: Any) -> None:
    """Updates ratchet: unchanged invalid parts are tolerated."""
    async with served() as api:
        await define(api)
        await api.post(WIDGETS, widget(size=50, colour="mauve"))
        tight = obj(
            size={**INTEGER, "maximum": 10},
            colour={**STRING, "x-kubernetes-validations": [{"rule": "self == 'red'", "message": "red only"}]},
        )
        await api.merge(PATH, {"spec": {"versions": [version(spec=tight)]}})
        labelled = await api.merge(f"{WIDGETS}/w", {"metadata": {"labels": {"a": "b"}}})
        assert labelled.status == 200, labelled.json
        assert labelled.warnings == ['299 - "spec.colour: Invalid value: \\"mauve\\": red only"']
        assert "should be less than or equal to 10" in error_message(
            await api.merge(f"{WIDGETS}/w", {"spec": {"size": 51}})
        )
        assert "red only" in error_message(await api.merge(f"{WIDGETS}/w", {"spec": {"colour": "teal"}}))
        better = await api.merge(f"{WIDGETS}/w", {"spec": {"size": 5}})
        assert (better.status, better.json["spec"]) == (200, {"size": 5, "colour": "mauve"})


async def test_only_the_status_is_judged_at_status(served: Any) -> None:
    async with served() as api:
        await define(api)
        await api.post(WIDGETS, widget(size=1))
        wrong = await api.merge(f"{WIDGETS}/w/status", {"status": {"ready": "yes"}})
        assert error_message(wrong) == (
            'status.ready: Invalid value: "string": ready in body must be of type boolean: "string"'
        )


# Generation


async def test_generation_counts_what_the_main_endpoint_changes(served: Any) -> None:
    async with served() as api:
        await define(api)
        made = (await api.post(WIDGETS, widget(size=1))).json
        assert made["metadata"]["generation"] == 1
        counts = [
            (await api.merge(f"{WIDGETS}/w", {"metadata": {"labels": {"a": "b"}}})).json,
            (await api.merge(f"{WIDGETS}/w", {"spec": {"size": 2}})).json,
            (await api.merge(f"{WIDGETS}/w/status", {"status": {"ready": True}})).json,
        ]
        assert [c["metadata"]["generation"] for c in counts] == [1, 2, 2]


async def test_without_a_status_endpoint_status_is_a_field(served: Any) -> None:
    async with served() as api:
        await define(api, version(subresources={}))
        made = await api.post(WIDGETS, {**widget(size=1), "status": {"ready": False}})
        assert made.json["status"] == {"ready": False}
        changed = await api.merge(f"{WIDGETS}/w", {"status": {"ready": True}})
        assert (changed.json["status"], changed.json["metadata"]["generation"]) == ({"ready": True}, 2)
        assert (await api.merge(f"{WIDGETS}/w/status", {"status": {}})).status == 404


async def test_put_needs_the_version(served: Any) -> None:
    async with served() as api:
        await define(api)
        made = (await api.post(WIDGETS, widget(size=1))).json
        assert error_message(await api.put(f"{WIDGETS}/w", widget(size=2))) == (
            "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
        )
        assert (await api.put(f"{WIDGETS}/x", widget("x", size=2))).status == 404
        stale = {**made, "metadata": {**made["metadata"], "resourceVersion": "1"}}
        assert (await api.put(f"{WIDGETS}/w", stale)).status == 409


async def test_finalizers_without_a_domain_are_only_warned_of(served: Any) -> None:
    async with served() as api:
        await define(api)
        given = widget(size=1)
        given["metadata"]["finalizers"] = ["mine"]
        made = await api.post(WIDGETS, given)
        assert made.status == 201
        assert made.warnings == [
            '299 - "metadata.finalizers: \\"mine\\": prefer a domain-qualified finalizer name to avoid '
            'accidental conflicts with other finalizer writers"'
        ]


# Versions


async def test_versions_share_their_objects_and_lose_what_they_do_not_know(served: Any) -> None:
    async with served() as api:
        new = version("v2", obj(size=INTEGER, weight={**INTEGER, "default": 7}), storage=False)
        await define(api, version(), new)
        v2 = WIDGETS.replace("/v1/", "/v2/")
        made = await api.post(v2, widget("w", "v2", size=1))
        assert made.json["spec"] == {"size": 1}  # v1 is what is stored, and does not know a weight
        assert made.json["apiVersion"] == "example.com/v2"
        assert (await api.get(f"{WIDGETS}/w")).json["apiVersion"] == "example.com/v1"
        await api.merge(f"{WIDGETS}/w", {"spec": {"colour": "red"}})
        assert (await api.get(f"{v2}/w")).json["spec"] == {"size": 1}
        assert (await api.get(f"{WIDGETS}/w")).json["spec"] == {"size": 1, "colour": "red"}
        wrong = await api.post(v2, widget("x"))
        assert wrong.status == 400
        assert "does not match the expected API version" in wrong.json["message"]


async def test_a_deprecated_version_is_told_to_everybody(served: Any) -> None:
    async with served() as api:
        old = version("v1beta1", storage=False, deprecated=True)
        alpha = version("v1alpha1", storage=False, deprecated=True, deprecationWarning="go away")
        await define(api, version(), old, alpha)
        beta = WIDGETS.replace("/v1/", "/v1beta1/")
        words = "example.com/v1beta1 Widget is deprecated; use example.com/v1 Widget"
        assert (await api.get(beta)).warnings == [f'299 - "{words}"']
        assert (await api.post(beta, widget("w", "v1beta1"))).warnings == [f'299 - "{words}"']
        assert (await api.get(f"{beta}/missing")).warnings == [f'299 - "{words}"']
        assert (await api.get(WIDGETS.replace("/v1/", "/v1alpha1/"))).warnings == ['299 - "go away"']
        assert (await api.get(WIDGETS)).warnings == []


# Lists, watches, selectors


async def test_selectable_fields_select(served: Any) -> None:
    async with served() as api:
        fields = [{"jsonPath": ".spec.colour"}, {"jsonPath": ".spec.size"}]
        spec = obj(size=INTEGER, colour={**STRING, "default": "grey"})
        await define(api, version(spec=spec, selectableFields=fields))
        objects: dict[str, dict[str, Any]] = {
            "a": {"colour": "red"},
            "b": {"colour": "blue", "size": 2},
            "c": {},
        }
        for name, given in objects.items():
            await api.post(WIDGETS, widget(name, **given))

        async def names(selector: str) -> list[str]:
            found = (await api.get(f"{WIDGETS}?fieldSelector={selector}")).json
            return [item["metadata"]["name"] for item in found["items"]]

        assert await names("spec.colour=red") == ["a"]
        assert await names("spec.colour!=red") == ["b", "c"]
        assert await names("spec.colour=grey") == ["c"]
        assert await names("spec.size=2,metadata.name=b") == ["b"]
        unknown = await api.get(f"{WIDGETS}?fieldSelector=spec.weight=1")
        assert (unknown.status, unknown.json["message"]) == (400, "field label not supported: spec.weight")
        start = (await api.get(WIDGETS)).json["metadata"]["resourceVersion"]
        async with api.watch(f"{WIDGETS}?fieldSelector=spec.colour=red&resourceVersion={start}") as watch:
            await api.merge(f"{WIDGETS}/b", {"spec": {"colour": "red"}})
            await api.merge(f"{WIDGETS}/b", {"spec": {"colour": "blue"}})
            events = [(e["type"], e["object"]["metadata"]["name"]) for e in await watch.take(2)]
        assert events == [("ADDED", "b"), ("DELETED", "b")]


async def test_a_list_has_its_own_kind_and_initial_events_end(served: Any) -> None:
    async with served() as api:
        await define(api, listKind="Widgetry", singular="wid")
        await api.post(WIDGETS, widget(size=1))
        assert (await api.get(WIDGETS)).json["kind"] == "Widgetry"
        wanted = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        async with api.watch(f"{WIDGETS}?{wanted}") as watch:
            added, mark = await watch.take(2)
        assert (added["type"], mark["type"]) == ("ADDED", "BOOKMARK")
        assert mark["object"]["kind"] == "Widget"
        [kind, _] = (await api.get("/apis/example.com/v1")).json["resources"]
        assert kind["singularName"] == "wid"


async def test_watches_begin_anew_when_the_schema_changes(served: Any) -> None:
    async with served() as api:
        await define(api)
        async with api.watch(WIDGETS) as watch:
            await api.post(WIDGETS, widget(size=1))
            await watch.next()
            await api.merge(PATH, {"spec": {"versions": [version(spec=obj(size=INTEGER))]}})
            assert await watch.has_ended()


async def test_deletecollection_and_table_and_metadata(served: Any) -> None:
    async with served() as api:
        columns = [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
            {"name": "Tags", "type": "string", "jsonPath": ".spec.tags", "priority": 1},
            {"name": "Made", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
            {"name": "Odd", "type": "string", "jsonPath": ".spec[?("},
        ]
        spec = obj(size=INTEGER, tags={"type": "array", "items": STRING})
        rows = {"type": "array", "items": obj(type=STRING, status=STRING)}
        made = version(spec=spec, additionalPrinterColumns=columns)
        made["schema"]["openAPIV3Schema"]["properties"]["status"] = obj(conditions=rows)
        await define(api, made)
        await api.post(WIDGETS, widget(size=2, tags=["a", "b"]))
        conditions = [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]
        await api.merge(f"{WIDGETS}/w/status", {"status": {"conditions": conditions}})
        table = (await api.get(WIDGETS, accept=TABLE)).json
        assert [c["priority"] for c in table["columnDefinitions"]] == [0, 0, 0, 1, 0, 0]
        [cells] = [row["cells"] for row in table["rows"]]
        assert cells[:4] == ["w", 2, "True", '["a","b"]']
        assert cells[4].endswith("s")
        assert cells[5] is None
        meta = await api.get(
            f"{WIDGETS}/w", accept="application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
        )
        assert (meta.json["kind"], "spec" in meta.json) == ("PartialObjectMetadata", False)
        gone = await api.delete(WIDGETS)
        assert (gone.status, len(gone.json["items"])) == (200, 1)
        assert (await api.get(WIDGETS)).json["items"] == []


async def test_without_columns_the_age_is_shown(served: Any) -> None:
    async with served() as api:
        await define(api)
        table = (await api.get(WIDGETS, accept=TABLE)).json
        assert [c["name"] for c in table["columnDefinitions"]] == ["Name", "Age"]


# Scale


async def test_scale_reads_and_writes_where_the_definition_says(served: Any) -> None:
    scale = {
        "specReplicasPath": ".spec.count",
        "statusReplicasPath": ".status.count",
        "labelSelectorPath": ".status.selector",
    }
    async with served() as api:
        made = version(spec=obj(count=INTEGER), subresources={"status": {}, "scale": scale})
        made["schema"]["openAPIV3Schema"]["properties"]["status"] = obj(count=INTEGER, selector=STRING)
        await define(api, made)
        listed = (await api.get("/apis/example.com/v1")).json["resources"]
        below = next(r for r in listed if r["name"] == "widgets/scale")
        assert (below["group"], below["version"], below["kind"]) == ("autoscaling", "v1", "Scale")
        await api.post(WIDGETS, widget())
        assert (await api.get(f"{WIDGETS}/w/scale")).status == 500
        patched = await api.merge(f"{WIDGETS}/w/scale", {"spec": {"replicas": 3}})
        assert (patched.status, patched.json["kind"], patched.json["spec"]) == (200, "Scale", {"replicas": 3})
        await api.merge(f"{WIDGETS}/w/status", {"status": {"count": 2, "selector": "a=b"}})
        seen = (await api.get(f"{WIDGETS}/w/scale")).json
        assert seen["status"] == {"replicas": 2, "selector": "a=b"}
        put = await api.put(f"{WIDGETS}/w/scale", {**seen, "spec": {"replicas": 5}})
        assert put.json["spec"] == {"replicas": 5}
        found = (await api.get(f"{WIDGETS}/w")).json
        assert (found["spec"], found["metadata"]["generation"]) == ({"count": 5}, 3)
        assert "should be a non-negative integer" in error_message(
            await api.merge(f"{WIDGETS}/w", {"spec": {"count": -1}})
        )


# What is published


async def test_the_schema_is_published(served: Any) -> None:
    async with served() as api:
        before = (await api.get("/openapi/v3")).json["paths"]
        assert "apis/example.com/v1" not in before
        size = {**INTEGER, "description": "How big it is.", "nullable": True}
        port = {"x-kubernetes-int-or-string": True}
        await define(api, version(spec={**obj(size=size, port=port), "required": ["size"]}))
        address = (await api.get("/openapi/v3")).json["paths"]["apis/example.com/v1"]["serverRelativeURL"]
        document = (await api.get(address)).json
        patch = document["paths"]["/apis/example.com/v1/namespaces/{namespace}/widgets/{name}"]["patch"]
        assert patch["x-kubernetes-group-version-kind"] == {
            "group": "example.com",
            "kind": "Widget",
            "version": "v1",
        }
        assert "application/strategic-merge-patch+json" not in patch["requestBody"]["content"]
        assert "fieldValidation" in {p["name"] for p in patch["parameters"]}
        schema = document["components"]["schemas"]["com.example.v1.Widget"]
        assert schema["properties"]["spec"]["properties"]["size"] == size
        assert schema["properties"]["spec"]["properties"]["port"]["anyOf"] == [INTEGER, STRING]
        meta = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        assert schema["properties"]["metadata"]["allOf"] == [{"$ref": meta}]
        assert schema["x-kubernetes-group-version-kind"] == [patch["x-kubernetes-group-version-kind"]]
        assert meta.rpartition("/")[2] in document["components"]["schemas"]
        old = (await api.get("/openapi/v2")).json["definitions"]
        spec = old["com.example.v1.Widget"]["properties"]["spec"]
        assert (spec["properties"]["size"], spec.get("required")) == ({"description": "How big it is."}, None)
        assert old["com.example.v1.WidgetList"]["required"] == ["items"]
        protobuf = await api.get(
            "/openapi/v2", accept="application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
        )
        assert b"com.example.v1.Widget" in protobuf.body
        await undefine(api)
        assert (await api.get(address)).status == 404


async def test_aggregated_discovery_changes_its_tag(served: Any) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    async with served() as api:
        before = (await api.get("/apis", accept=accept)).headers.get("etag")
        await define(api, shortNames=["wd"], categories=["all"])
        after = await api.get("/apis", accept=accept, if_none_match=before)
        assert after.status == 200
        group = next(g for g in after.json["items"] if g["metadata"]["name"] == "example.com")
        [kind] = group["versions"][0]["resources"]
        assert (kind["shortNames"], kind["categories"], kind["scope"]) == (["wd"], ["all"], "Namespaced")
        assert [s["subresource"] for s in kind["subresources"]] == ["status"]


async def test_deep_and_odd_bodies_are_refused(served: Any) -> None:
    async with served() as api:
        await define(api, version(spec=obj(free={"type": "object", **PRESERVE})))
        deep: Json = 1
        for _ in range(200):
            deep = {"a": deep}
        assert (await api.post(WIDGETS, widget(free=deep))).status == 400
        big = await api.post(WIDGETS, widget(free={"n": 1 << 70, "f": 2.0}))
        assert (big.status, big.json["spec"]["free"]["f"]) == (201, 2)
        wrong = {**widget("x"), "metadata": "name"}
        assert (await api.post(WIDGETS, wrong)).status == 400
        other = {**widget("x"), "kind": "Gadget"}
        assert (await api.post(WIDGETS, other)).status == 400


async def test_too_deep_a_schema_is_refused(served: Any) -> None:
    async with served() as api:
        for step in (lambda s: obj(a=s), lambda s: {"type": "array", "items": s}, lambda s: {"not": s}):
            deep: Json = dict(STRING)
            for _ in range(100):
                deep = step(deep)
            refused = await api.post(CRDS, definition(version(spec=deep)))
            assert (refused.status, refused.json["message"]) == (400, "exceeded max depth")


# Namespaces


async def test_a_namespace_goes_after_its_custom_objects(served: Any) -> None:
    async with served() as api:
        await define(api)
        await api.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
        inside = WIDGETS.replace("/default/", "/team/")
        held = widget("held")
        held["metadata"]["finalizers"] = ["example.com/hold"]
        await api.post(inside, held)
        await api.post(inside, widget("free"))
        await api.post(WIDGETS, widget("elsewhere"))
        async with api.watch(inside) as watch, api.watch("/api/v1/namespaces") as namespaces:
            await watch.take(2)
            await api.delete("/api/v1/namespaces/team")
            seen = {(e["type"], e["object"]["metadata"]["name"]) for e in await watch.take(2)}
            assert seen == {("DELETED", "free"), ("MODIFIED", "held")}
            space = (await api.get("/api/v1/namespaces/team")).json
            done = {**space, "spec": {"finalizers": []}}
            assert (await api.put("/api/v1/namespaces/team/finalize", done)).status == 200
            assert (await api.get("/api/v1/namespaces/team")).status == 200
            await api.merge(f"{inside}/held", {"metadata": {"finalizers": None}})
            while (await namespaces.next())["type"] != "DELETED":
                pass
        assert (await api.get("/api/v1/namespaces/team")).status == 404
        assert (await api.get(f"{WIDGETS}/elsewhere")).status == 200
