"""Deletion: finalizers, grace, preconditions, propagation, collections."""

from __future__ import annotations

from typing import Any

import pytest

DEFAULT = "/api/v1/namespaces/default"
CLAIMS = f"{DEFAULT}/persistentvolumeclaims"


def config_map_with_finalizer(name: str = "a") -> dict[str, Any]:
    return {"metadata": {"name": name, "finalizers": ["example.com/hold"], "labels": {"app": name}}}


async def running_pod(api: Any, name: str = "p") -> dict[str, Any]:
    await api.post(f"{DEFAULT}/serviceaccounts", {"metadata": {"name": "default"}})
    spec = {"containers": [{"name": "c", "image": "busybox"}], "nodeName": "n1"}
    made = await api.post(f"{DEFAULT}/pods", {"metadata": {"name": name}, "spec": spec})
    assert made.status == 201, made.json
    result: dict[str, Any] = made.json
    return result


async def test_removing_the_last_finalizer_removes_the_object(served: Any) -> None:
    async with served() as api:
        made = (await api.post(f"{DEFAULT}/configmaps", config_map_with_finalizer())).json
        version = made["metadata"]["resourceVersion"]
        async with api.watch(f"{DEFAULT}/configmaps?resourceVersion={version}") as watch:
            marked = await api.delete(f"{DEFAULT}/configmaps/a", {"propagationPolicy": "Background"})
            assert (marked.status, marked.json["kind"]) == (200, "ConfigMap")
            assert marked.json["metadata"]["deletionTimestamp"]
            assert marked.json["metadata"]["deletionGracePeriodSeconds"] == 0
            again = await api.delete(f"{DEFAULT}/configmaps/a")
            assert again.json == marked.json
            late = await api.merge(
                f"{DEFAULT}/configmaps/a",
                {"metadata": {"finalizers": ["example.com/hold", "example.com/new"]}},
            )
            assert late.status == 422
            assert "no new finalizers can be added if the object is being deleted" in late.json["message"]
            freed = await api.merge(f"{DEFAULT}/configmaps/a", {"metadata": {"finalizers": []}})
            assert (freed.status, freed.json["kind"]) == (200, "ConfigMap")
            assert (await api.get(f"{DEFAULT}/configmaps/a")).status == 404
            modified, deleted = await watch.take(2)
            assert (modified["type"], deleted["type"]) == ("MODIFIED", "DELETED")
            versions = [int(e["object"]["metadata"]["resourceVersion"]) for e in (modified, deleted)]
            assert versions == sorted(set(versions))


async def test_deleting_some_kinds_returns_a_status(served: Any) -> None:
    async with served() as api:
        made = (await api.post(f"{DEFAULT}/configmaps", {"metadata": {"name": "a"}})).json
        gone = await api.delete(f"{DEFAULT}/configmaps/a")
        assert gone.json == {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]},
        }
        path = "/apis/storage.k8s.io/v1/storageclasses"
        await api.post(path, {"metadata": {"name": "s"}, "provisioner": "x.example"})
        assert (await api.delete(f"{path}/s")).json["kind"] == "StorageClass"


async def test_the_grace_period_of_a_running_pod_can_only_be_shortened(served: Any) -> None:
    async with served() as api:
        made = await running_pod(api)
        first = await api.delete(f"{DEFAULT}/pods/p")
        meta = first.json["metadata"]
        assert (first.status, meta["deletionGracePeriodSeconds"]) == (200, 30)
        assert meta["generation"] == made["metadata"]["generation"] + 1
        longer = await api.delete(f"{DEFAULT}/pods/p", {"gracePeriodSeconds": 60})
        assert longer.json["metadata"] == meta
        shorter = await api.delete(f"{DEFAULT}/pods/p?gracePeriodSeconds=5")
        assert shorter.json["metadata"]["deletionGracePeriodSeconds"] == 5
        assert shorter.json["metadata"]["deletionTimestamp"] < meta["deletionTimestamp"]
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": made["metadata"]["uid"]}}
        assert (await api.delete(f"{DEFAULT}/pods/p", options)).status == 200
        assert (await api.get(f"{DEFAULT}/pods/p")).status == 404


async def test_an_unscheduled_pod_is_deleted_at_once(served: Any) -> None:
    async with served() as api:
        await api.post(f"{DEFAULT}/serviceaccounts", {"metadata": {"name": "default"}})
        spec = {"containers": [{"name": "c", "image": "busybox"}]}
        await api.post(f"{DEFAULT}/pods", {"metadata": {"name": "p"}, "spec": spec})
        await api.delete(f"{DEFAULT}/pods/p")
        assert (await api.get(f"{DEFAULT}/pods/p")).status == 404


async def test_preconditions_guard_a_delete(served: Any) -> None:
    async with served() as api:
        made = (await api.post(f"{DEFAULT}/configmaps", {"metadata": {"name": "a"}})).json
        for guard in ({"uid": "other"}, {"resourceVersion": "1"}):
            refused = await api.delete(f"{DEFAULT}/configmaps/a", {"preconditions": guard})
            assert (refused.status, refused.json["reason"]) == (409, "Conflict")
            assert "in the precondition" in refused.json["message"]
        version = made["metadata"]["resourceVersion"]
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"resourceVersion": version}}
        assert (await api.delete(f"{DEFAULT}/configmaps/a", options)).status == 200


@pytest.mark.parametrize(
    ("options", "finalizers"),
    [
        ({"propagationPolicy": "Orphan"}, ["example.com/hold", "orphan"]),
        ({"propagationPolicy": "Foreground"}, ["example.com/hold", "foregroundDeletion"]),
        ({"propagationPolicy": "Background"}, ["example.com/hold"]),
        ({"orphanDependents": True}, ["example.com/hold", "orphan"]),
    ],
)
async def test_the_propagation_policy_is_stored_as_a_finalizer(
    served: Any, options: dict[str, Any], finalizers: list[str]
) -> None:
    async with served() as api:
        await api.post(f"{DEFAULT}/configmaps", config_map_with_finalizer())
        marked = await api.delete(f"{DEFAULT}/configmaps/a", options)
        assert marked.json["metadata"]["finalizers"] == finalizers


async def test_contradictory_options_are_refused(served: Any) -> None:
    async with served() as api:
        await api.post(f"{DEFAULT}/configmaps", config_map_with_finalizer())
        both = {"propagationPolicy": "Orphan", "orphanDependents": True}
        assert (await api.delete(f"{DEFAULT}/configmaps/a", both)).status == 422
        assert (await api.delete(f"{DEFAULT}/configmaps/a", {"propagationPolicy": "Up"})).status == 422
        accepted = await api.delete(f"{DEFAULT}/configmaps/a", {"orphanDependents": False})
        assert accepted.status == 202


async def test_a_collection_is_deleted_by_selector(served: Any) -> None:
    async with served() as api:
        for name in ("a", "b"):
            await api.post(f"{DEFAULT}/configmaps", {"metadata": {"name": name, "labels": {"app": name}}})
        gone = await api.call("DELETE", f"{DEFAULT}/configmaps?labelSelector=app%3Da")
        assert gone.json["kind"] == "ConfigMapList"
        assert [i["metadata"]["name"] for i in gone.json["items"]] == ["a"]
        left = (await api.get(f"{DEFAULT}/configmaps")).json["items"]
        assert [i["metadata"]["name"] for i in left] == ["b"]


async def test_a_namespace_waits_for_its_own_finalizers(served: Any) -> None:
    async with served() as api:
        await api.post("/api/v1/namespaces", {"metadata": {"name": "x"}})
        marked = (await api.delete("/api/v1/namespaces/x")).json
        assert marked["spec"]["finalizers"] == ["kubernetes"]
        marked["spec"]["finalizers"] = []
        done = await api.put("/api/v1/namespaces/x/finalize", marked)
        assert done.status == 200
        assert (await api.get("/api/v1/namespaces/x")).status == 404
        for name in ("default", "kube-system", "kube-public"):
            kept = await api.delete(f"/api/v1/namespaces/{name}")
            assert kept.status == 403
            assert (
                kept.json["message"] == f'namespaces "{name}" is forbidden: this namespace may not be deleted'
            )


@pytest.mark.parametrize(
    ("path", "status"), [("/api/v1/configmaps", 405), ("/api/v1/namespaces//configmaps", 404)]
)
async def test_deleting_across_namespaces_is_not_allowed(served: Any, path: str, status: int) -> None:
    async with served() as api:
        maps = "/api/v1/namespaces/default/configmaps"
        assert (await api.post(maps, {"metadata": {"name": "kept"}})).status == 201
        assert (await api.delete(path)).status == status
        assert (await api.get(f"{maps}/kept")).status == 200


async def test_a_delete_with_an_unsupported_accept_header_has_no_effect(served: Any) -> None:
    async with served() as api:
        maps = "/api/v1/namespaces/default/configmaps"
        assert (await api.post(maps, {"metadata": {"name": "kept"}})).status == 201
        form = "application/json;as=PartialObjectMetadata{};v=v1;g=meta.k8s.io"
        assert (await api.call("DELETE", maps, accept=form.format(""))).status == 406
        assert (await api.call("DELETE", f"{maps}/kept", accept=form.format("List"))).status == 406
        assert (await api.get(f"{maps}/kept")).status == 200
