"""Contract api-server D, patches: the cases to test."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api_server.definitions import (
    SNAPSHOTS,
    define,
    install_snapshots,
    snapshot,
    widget,
)
from tests.contract.api_server.samples import claim, config, deployment, make, make_pod, volume

JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
VOLUMES = "/api/v1/persistentvolumes"
SLASH = {"op": "add", "path": "/metadata/labels/example.com~1a", "value": "1"}
REJECTED = "the server rejected our request due to an error in our request"


async def test_cr_without_status_replace_on_status_is_200(served: Any) -> None:
    async with served() as api:
        await install_snapshots(api)
        await make(api, SNAPSHOTS, snapshot(persistentVolumeClaimName="data"))
        ops = [{"op": "replace", "path": "/status", "value": {"readyToUse": False}}]
        patched = await api.call("PATCH", f"{SNAPSHOTS}/s/status", ops, type=JSON_PATCH)
        assert (patched.status, patched.json["status"]) == (200, {"readyToUse": False})


async def test_pv_without_finalizers_test_null_then_add_is_200_and_repeated_422(shared: Any) -> None:
    async with shared() as api:
        await make(api, VOLUMES, volume("pv-d"))
        await api.merge(f"{VOLUMES}/pv-d", {"metadata": {"finalizers": None}})
        ops = [
            {"op": "test", "path": "/metadata/finalizers", "value": None},
            {"op": "add", "path": "/metadata/finalizers", "value": ["external-attacher/d"]},
        ]
        first = await api.call("PATCH", f"{VOLUMES}/pv-d", ops, type=JSON_PATCH)
        assert (first.status, first.json["metadata"]["finalizers"]) == (200, ["external-attacher/d"])
        again = await api.call("PATCH", f"{VOLUMES}/pv-d", ops, type=JSON_PATCH)
        assert (again.status, again.json["reason"], again.json["message"]) == (422, "Invalid", REJECTED)


async def test_replacing_finalizers_by_null_on_a_deleting_cr_removes_it(served: Any) -> None:
    async with served() as api:
        await install_snapshots(api)
        body = snapshot(persistentVolumeClaimName="data")
        body["metadata"]["finalizers"] = ["example.com/a"]
        await make(api, SNAPSHOTS, body)
        await api.delete(f"{SNAPSHOTS}/s")
        ops = [{"op": "replace", "path": "/metadata/finalizers", "value": None}]
        assert (await api.call("PATCH", f"{SNAPSHOTS}/s", ops, type=JSON_PATCH)).status == 200
        assert (await api.get(f"{SNAPSHOTS}/s")).status == 404


async def test_strategic_pvc_status_is_409_when_stale_else_keeps_other_conditions(shared: Any) -> None:
    async with shared() as api:
        path = api.at("persistentvolumeclaims")
        made = await make(api, path, claim())
        there = {"status": {"conditions": [{"type": "FileSystemResizePending", "status": "True"}]}}
        await api.merge(f"{path}/data/status", there)

        def resizing(version: str) -> Any:
            conditions = [{"type": "Resizing", "status": "True"}]
            return {"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}}

        stale = await api.call(
            "PATCH", f"{path}/data/status", resizing(made["metadata"]["resourceVersion"]), type=STRATEGIC
        )
        assert (stale.status, stale.json["reason"]) == (409, "Conflict")
        live = (await api.get(f"{path}/data")).json["metadata"]["resourceVersion"]
        patched = await api.call("PATCH", f"{path}/data/status", resizing(live), type=STRATEGIC)
        assert patched.status == 200
        assert {c["type"] for c in patched.json["status"]["conditions"]} == {
            "FileSystemResizePending",
            "Resizing",
        }


async def test_strategic_pv_deletes_from_a_primitive_list_in_order(shared: Any) -> None:
    async with shared() as api:
        body = volume("pv-lists")
        body["metadata"]["finalizers"] = ["example.com/a", "example.com/b"]
        made = await make(api, VOLUMES, body)
        before = made["metadata"]["finalizers"]
        patch = {
            "metadata": {
                "$deleteFromPrimitiveList/finalizers": [f for f in before if f != "example.com/b"],
                "$setElementOrder/finalizers": ["example.com/b"],
            }
        }
        patched = await api.call("PATCH", f"{VOLUMES}/pv-lists", patch, type=STRATEGIC)
        assert (patched.status, patched.json["metadata"]["finalizers"]) == (200, ["example.com/b"])


async def test_apply_by_two_managers_conflicts_and_force_takes_the_path(shared: Any) -> None:
    async with shared() as api:
        path = api.at("deployments", "web", group="apps/v1")

        def wanted(replicas: int) -> Any:
            return {"apiVersion": "apps/v1", "kind": "Deployment", **deployment(replicas=replicas)}

        first = await api.call("PATCH", f"{path}?fieldManager=A", wanted(1), type=APPLY)
        assert first.status == 201, first.json
        other = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}
        other["spec"] = {"replicas": 2}
        clash = await api.call("PATCH", f"{path}?fieldManager=B", other, type=APPLY)
        assert (clash.status, clash.json["reason"]) == (409, "Conflict")
        assert clash.json["message"].startswith('Apply failed with 1 conflict: conflict with "A"')
        (cause,) = clash.json["details"]["causes"]
        assert (cause["reason"], cause["field"]) == ("FieldManagerConflict", ".spec.replicas")
        forced = await api.call("PATCH", f"{path}?fieldManager=B&force=true", other, type=APPLY)
        assert (forced.status, forced.json["spec"]["replicas"]) == (200, 2)
        owners = {m["manager"]: m["fieldsV1"] for m in forced.json["metadata"]["managedFields"]}
        assert "f:replicas" in owners["B"]["f:spec"]
        assert "f:replicas" not in owners["A"]["f:spec"]
        nothing = await api.call("PATCH", f"{path}?fieldManager=B", other, type=APPLY)
        assert nothing.json["metadata"]["resourceVersion"] == forced.json["metadata"]["resourceVersion"]


async def test_strategic_patch_on_a_custom_resource_is_415(served: Any) -> None:
    async with served() as api:
        await define(api)
        path = "/apis/example.com/v1/namespaces/default/widgets"
        await make(api, path, widget())
        refused = await api.call("PATCH", f"{path}/w", {}, type=STRATEGIC)
        assert (refused.status, refused.json["reason"]) == (415, "UnsupportedMediaType")


# The prose


@pytest.mark.parametrize(
    ("ops", "code"),
    [
        ([{"op": "replace", "path": "/data/new", "value": "1"}], 200),
        ([{"op": "replace", "path": "/none/new", "value": "1"}], 422),
        ([{"op": "test", "path": "/data/none", "value": None}], 200),
        ([{"op": "test", "path": "/data/none"}], 200),
        ([{"op": "remove", "path": "/data/none"}], 422),
        ([{"op": "add", "path": "/none/new", "value": "1"}], 422),
        ([{"op": "add", "path": "/metadata/labels", "value": {}}], 200),
        ([{"op": "add", "path": "/metadata/labels", "value": {}}, SLASH], 200),
        ([{"op": "copy", "from": "/data/k", "path": "/data/l"}], 200),
        ([{"op": "move", "from": "/data/k", "path": "/data/l"}], 200),
        ({"op": "add"}, 400),
        ([{"op": "test", "path": "/data/none", "value": None}] * 10001, 413),
    ],
    ids=lambda value: None if isinstance(value, int) else str(value)[:60],
)
async def test_json_patch_as_evanphx_applies_it(shared: Any, ops: Any, code: int) -> None:
    async with shared() as api:
        await make(api, api.at("configmaps"), config(k="v"))
        patched = await api.call("PATCH", api.at("configmaps", "m"), ops, type=JSON_PATCH)
        assert patched.status == code, patched.json


async def test_negative_indices_and_appending(shared: Any) -> None:
    async with shared() as api:
        await make(api, api.at("configmaps"), config())
        path = api.at("configmaps", "m")
        finalizers = "/metadata/finalizers"
        ops = [
            {"op": "add", "path": finalizers, "value": ["example.com/a", "example.com/b"]},
            {"op": "add", "path": f"{finalizers}/-", "value": "example.com/c"},
            {"op": "remove", "path": f"{finalizers}/-1"},
            {"op": "replace", "path": f"{finalizers}/0", "value": "example.com/z"},
        ]
        patched = await api.call("PATCH", path, ops, type=JSON_PATCH)
        assert patched.json["metadata"]["finalizers"] == ["example.com/z", "example.com/b"]


async def test_merge_patch_that_is_no_object_is_400(shared: Any) -> None:
    async with shared() as api:
        await make(api, api.at("configmaps"), config())
        assert (await api.call("PATCH", api.at("configmaps", "m"), [1], type=MERGE)).status == 400


async def test_other_patch_types_are_415_listing_the_accepted_ones(shared: Any) -> None:
    async with shared() as api:
        await make(api, api.at("configmaps"), config())
        path = api.at("configmaps", "m")
        refused = await api.call("PATCH", path, {}, type="application/json")
        assert refused.status == 415
        assert all(t in refused.json["message"] for t in (JSON_PATCH, MERGE, STRATEGIC, APPLY))
        assert (await api.call("PATCH", path, {}, type=f"{MERGE}; charset=utf-8")).status == 200


async def test_a_patch_for_another_uid_is_409(shared: Any) -> None:
    async with shared() as api:
        await make(api, api.at("configmaps"), config())
        namesake = await api.merge(api.at("configmaps", "m"), {"metadata": {"uid": "another"}, "data": {}})
        assert (namesake.status, namesake.json["reason"]) == (409, "Conflict")
        assert "Precondition failed: UID in precondition: another" in namesake.json["message"]


async def test_a_patch_of_a_missing_object_is_404(shared: Any) -> None:
    async with shared() as api:
        assert (await api.merge(api.at("configmaps", "none"), {})).status == 404


@pytest.mark.parametrize(
    ("query", "type", "body", "code", "reported"),
    [
        ("", APPLY, {}, 422, "fieldManager: Required value: is required for apply patch"),
        ("?force=true", MERGE, {}, 422, "force: Forbidden: may not be specified for non-apply patch"),
        (
            "?fieldManager=a",
            APPLY,
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "managedFields": []}},
            400,
            "metadata.managedFields must be nil",
        ),
    ],
)
async def test_apply_needs_a_manager_and_no_managed_fields(
    shared: Any, query: str, type: str, body: Any, code: int, reported: str
) -> None:
    async with shared() as api:
        await make(api, api.at("configmaps"), config())
        refused = await api.call("PATCH", api.at("configmaps", "m") + query, body, type=type)
        assert refused.status == code, refused.json
        assert reported in refused.json["message"]


async def test_strategic_directives(shared: Any) -> None:
    async with shared() as api:
        volumes = [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]
        made = await make_pod(api, volumes=volumes)
        path = api.at("deployments", group="apps/v1")
        body = deployment()
        body["spec"]["template"]["spec"]["volumes"] = volumes
        await make(api, path, body)

        async def patched(volumes: Any) -> list[Any]:
            patch = {"spec": {"template": {"spec": {"volumes": volumes}}}}
            answer = await api.call("PATCH", f"{path}/web", patch, type=STRATEGIC)
            assert answer.status == 200, answer.json
            found: list[Any] = answer.json["spec"]["template"]["spec"].get("volumes", [])
            return found

        # A volume's source is one of many: another takes its place.
        assert await patched(
            [{"name": "v", "hostPath": {"path": "/a"}, "$retainKeys": ["name", "hostPath"]}]
        ) == [
            {"name": "v", "hostPath": {"path": "/a", "type": ""}},
            {"name": "w", "emptyDir": {}},
        ]
        assert [v["name"] for v in await patched([{"name": "v", "$patch": "delete"}])] == ["w"]
        assert await patched([{"$patch": "replace"}, {"name": "x", "emptyDir": {}}]) == [
            {"name": "x", "emptyDir": {}}
        ]
        assert made["spec"]["volumes"][0]["name"] == "v"
