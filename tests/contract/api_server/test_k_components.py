"""Contract api-server K, what each real component asks: its requests, by its own identity where it has one.

An informer here does what client-go's does: a watch that begins with the state and is synced at the
annotated bookmark. The components themselves, built from their sources, run in tests/peers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.apiserver.conftest import WatchStream
from tests.contract.api_server.definitions import install_snapshots
from tests.contract.api_server.people import Person, person
from tests.contract.api_server.samples import JSON, PROTOBUF, claim, make, volume
from volplane.client.client import Client
from volplane.cluster.apply import apply

PATIENCE = 60.0
WATCH_LIST = "allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&sendInitialEvents=true&watch=true"
GO = {"accept": f"{PROTOBUF},{JSON}", "user-agent": "component/v1"}
STORAGE, SNAPSHOTS = "/apis/storage.k8s.io/v1", "/apis/snapshot.storage.k8s.io/v1"


async def informer(who: Person, path: str) -> str:
    """Synced, or why not."""
    joint = "&" if "?" in path else "?"
    async with who.http.stream("GET", f"{path}{joint}{WATCH_LIST}", headers=GO) as (answer, chunks):
        if answer.status != 200:
            return f"{path}: {answer.status}"
        watch = WatchStream(chunks)
        async with asyncio.timeout(PATIENCE):
            while (event := await watch.next())["type"] != "BOOKMARK":
                if event["type"] != "ADDED":
                    return f"{path}: {event}"
        marks = event["object"]["metadata"].get("annotations", {})
        return "" if marks == {"k8s.io/initial-events-end": "true"} else f"{path}: {event}"


async def unsynced(who: Person, paths: Iterable[str]) -> list[str]:
    return [why for why in await asyncio.gather(*(informer(who, path) for path in paths)) if why]


async def refused(who: Person, *asked: tuple[Any, ...]) -> list[str]:
    """What was answered with an error, of requests `(method, path[, body[, content type]])`."""
    found = []
    for method, path, *rest in asked:
        body, type = [*rest, None, JSON][:2] if len(rest) < 2 else rest
        answer = await who.ask(method, path, body, type=type or JSON, accept=GO["accept"])
        if answer.status >= 400:
            found.append(f"{method} {path}: {answer.status} {answer.body.decode()}")
    return found


@asynccontextmanager
async def cluster(served: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A server with the manifests' roles, the snapshot kinds, a node, a claim and a volume."""
    async with served() as api, AsyncExitStack() as stack:
        await apply(Client(api.server.in_process_transport(), component="test"))
        await make(api, "/api/v1/nodes", {"metadata": {"name": "n1"}})
        default = "/api/v1/namespaces/default"
        await make(api, f"{default}/serviceaccounts", {"metadata": {"name": "default"}})
        await make(api, f"{default}/persistentvolumeclaims", claim())
        await make(api, "/api/v1/persistentvolumes", volume("pv"))

        async def somebody(user: str, *groups: str) -> Person:
            return await stack.enter_async_context(person(api.server, user, *groups))

        yield api, somebody


def lease(name: str, path: str = "kube-system") -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{path}/leases/{name}"


def core(*plurals: str) -> list[str]:
    return [f"/api/v1/{plural}" for plural in plurals]


def storage(*plurals: str) -> list[str]:
    return [f"{STORAGE}/{plural}" for plural in plurals]


def snapshots(*plurals: str) -> list[str]:
    return [f"{SNAPSHOTS}/{plural}" for plural in plurals]


SCHEDULER = [
    "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed",
    *core("nodes", "namespaces", "services", "replicationcontrollers"),
    *core("persistentvolumeclaims", "persistentvolumes"),
    "/apis/apps/v1/replicasets",
    "/apis/apps/v1/statefulsets",
    "/apis/policy/v1/poddisruptionbudgets",
    *storage("storageclasses", "csinodes", "csidrivers", "csistoragecapacities", "volumeattachments"),
    "/apis/resource.k8s.io/v1/resourceclaims",
    "/apis/resource.k8s.io/v1/resourceslices",
    "/apis/resource.k8s.io/v1/deviceclasses",
]
KUBELET = [
    "/api/v1/nodes?fieldSelector=metadata.name%3Dn1",
    "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1",
    "/api/v1/services?fieldSelector=spec.clusterIP%21%3DNone",
    *storage("csidrivers"),
    "/apis/node.k8s.io/v1/runtimeclasses",
]
SIDECARS = {
    "external-provisioner": [
        *core("persistentvolumeclaims", "persistentvolumes", "nodes"),
        *storage("storageclasses", "volumeattachments", "csinodes"),
        f"{STORAGE}/namespaces/kube-system/csistoragecapacities",
        *snapshots("volumesnapshots"),
    ],
    "external-attacher": [*core("persistentvolumes"), *storage("volumeattachments", "csinodes")],
    "external-resizer": [
        *core("persistentvolumeclaims", "persistentvolumes", "pods"),
        *storage("volumeattributesclasses"),
    ],
    "csi-snapshotter": snapshots("volumesnapshotcontents", "volumesnapshotclasses"),
    "snapshot-controller": [
        *snapshots("volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"),
        *core("persistentvolumeclaims", "persistentvolumes", "nodes"),
    ],
}


@pytest.mark.parametrize("sidecar", SIDECARS)
async def test_every_informer_of_a_sidecar_is_synced(served: Any, sidecar: str) -> None:
    async with cluster(served) as (_, somebody):
        who = await somebody("kubernetes-admin", "system:masters")
        assert await unsynced(who, SIDECARS[sidecar]) == []


async def test_the_scheduler_is_refused_nothing(served: Any) -> None:
    async with cluster(served) as (api, somebody):
        who = await somebody("system:kube-scheduler")
        assert await unsynced(who, SCHEDULER) == []
        default = "/api/v1/namespaces/default"
        spec = {"containers": [{"name": "c", "image": "a"}]}
        await make(api, f"{default}/pods", {"metadata": {"name": "p"}, "spec": spec})
        event = {
            "metadata": {"name": "p.1"},
            "eventTime": "2026-01-02T03:04:05.000000Z",
            "reportingController": "default-scheduler",
            "reportingInstance": "default-scheduler-n1",
            "action": "Binding",
            "reason": "Scheduled",
            "type": "Normal",
            "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        }
        condition = {"status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}
        note = {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n1"}}}
        assert (
            await refused(
                who,
                ("GET", "/apis/events.k8s.io/v1"),
                ("POST", lease("").rstrip("/"), {"metadata": {"name": "kube-scheduler"}}),
                ("GET", lease("kube-scheduler")),
                ("PATCH", f"{default}/pods/p/status", condition, "application/strategic-merge-patch+json"),
                ("PATCH", f"{default}/persistentvolumeclaims/data", note, "application/merge-patch+json"),
                ("POST", f"{default}/pods/p/binding", {"target": {"kind": "Node", "name": "n1"}}),
                ("POST", "/apis/events.k8s.io/v1/namespaces/default/events", event),
                ("DELETE", f"{default}/pods/p"),
            )
            == []
        )


async def test_the_kubelet_is_refused_nothing(served: Any) -> None:
    async with cluster(served) as (_, somebody):
        who = await somebody("system:node:n1", "system:nodes")
        assert await unsynced(who, KUBELET) == []
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        drivers = {"metadata": {"name": "n1"}, "spec": {"drivers": []}}
        beat = {"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1", "leaseDurationSeconds": 40}}
        strategic = "application/strategic-merge-patch+json"
        assert (
            await refused(
                who,
                ("GET", "/api/v1/nodes/n1"),
                ("PATCH", "/api/v1/nodes/n1/status", ready, strategic),
                ("POST", f"{STORAGE}/csinodes", drivers),
                ("GET", f"{STORAGE}/csinodes/n1"),
                ("POST", lease("", "kube-node-lease").rstrip("/"), beat),
                ("GET", lease("n1", "kube-node-lease")),
                ("DELETE", "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dn1"),
                ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x"}}),
            )
            == []
        )


async def test_the_controller_manager_is_refused_nothing(served: Any) -> None:
    """It discovers everything, then follows all that can be deleted, by metadata alone."""
    async with cluster(served) as (_, somebody):
        who = await somebody("system:kube-controller-manager")
        assert (await who.get("/healthz")).body == b"ok"
        paths = []
        for group in ["/api/v1", *(f"/apis/{g}" for g in await _versions(who))]:
            served_here = (await who.get(group)).json["resources"]
            deletable = [r["name"] for r in served_here if {"delete", "list", "watch"} <= set(r["verbs"])]
            paths += [f"{group}/{name}" for name in deletable]
        assert len(paths) > 40
        assert await unsynced(who, paths) == []
        alone = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
        listed = [(path, (await who.get(path, accept=alone)).json["kind"]) for path in paths]
        assert [path for path, kind in listed if kind != "PartialObjectMetadataList"] == []


async def _versions(who: Person) -> list[str]:
    groups = (await who.get("/apis")).json["groups"]
    return [version["groupVersion"] for group in groups for version in group["versions"]]


async def test_the_lists_that_the_scheduler_waits_for_are_empty(shared: Any) -> None:
    async with shared() as api:
        for plural in ("resourceclaims", "resourceslices", "deviceclasses"):
            listed = (await api.get(f"/apis/resource.k8s.io/v1/{plural}")).json
            assert listed["items"] == []


async def test_the_snapshot_controller_meets_404_without_crds_and_syncs_with_them(served: Any) -> None:
    kinds = snapshots("volumesnapshots", "volumesnapshotclasses", "volumesnapshotcontents")
    async with served() as api, person(api.server, "kubernetes-admin", "system:masters") as who:
        assert {(await who.get(f"{path}?limit=1")).status for path in kinds} == {404}
        await install_snapshots(api)
        assert {(await who.get(f"{path}?limit=1")).status for path in kinds} == {200}
        assert await unsynced(who, kinds) == []


async def test_kopf_tests_the_version_before_it_patches(shared: Any) -> None:
    async with shared() as api:
        made = await make(api, api.at("configmaps"), {"metadata": {"name": "m"}})
        version = made["metadata"]["resourceVersion"]
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        ops = [test, {"op": "add", "path": "/data", "value": {"a": "b"}}]
        patch = "application/json-patch+json"
        assert (await api.call("PATCH", api.at("configmaps", "m"), ops, type=patch)).status == 200
        late = await api.call("PATCH", api.at("configmaps", "m"), ops, type=patch)
        assert (late.status, late.json["kind"]) == (422, "Status")
