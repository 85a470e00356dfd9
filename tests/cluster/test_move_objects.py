"""`volplane export objects` and `volplane import`: the objects of a cluster in another one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.conftest import Api, served
from tests.controllers.garbage.test_garbage_custom import definition
from tests.loops.inprocess import running, until
from tests.support import peers
from tests.support.https_apiserver import https_apiserver
from volplane.api import codec
from volplane.api.finalizers import PROVISIONING_INTENT_FINALIZER
from volplane.client.client import Client
from volplane.cluster.objects.export import is_made_by_cluster
from volplane.cluster.objects.importing import ObjectImport, sort_for_import
from volplane.cluster.objects.portable import make_portable
from volplane.cluster.objects.served_kinds import ServedKind
from volplane.controllers.binder.controller import Binder

__all__ = ["served"]

SPACE = "/api/v1/namespaces/team"
CLAIMS, VOLUMES = f"{SPACE}/persistentvolumeclaims", "/api/v1/persistentvolumes"
APPS, WIDGETS = "/apis/apps/v1/namespaces/team", "/apis/example.com/v1/namespaces/team/widgets"
GADGETS = "/apis/example.com/v1alpha1/namespaces/team/gadgets"
WANT = {"accessModes": ["ReadWriteOnce"], "storageClassName": "manual"}


async def volplane(*words: str, code: int = 0) -> str:
    """What it prints."""
    command = [sys.executable, "-m", "volplane", *words]
    run = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    told, _ = await run.communicate()
    assert run.returncode == code, told.decode()
    return told.decode()


def gadget_definition() -> dict[str, Any]:
    """Of the group of the widgets, but not in its preferred version; with a status of its own."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "gadgets", "kind": "Gadget", "singular": "gadget", "listKind": "GadgetList"}
    versions = [{**version, "subresources": {"status": {}}}]
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": versions}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.example.com"},
        "spec": spec,
    }


async def fill(api: Api) -> None:
    for each in (codec.to_dict(definition()), gadget_definition()):
        await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", each)
    await api.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
    await api.post(f"{SPACE}/serviceaccounts", {"metadata": {"name": "default"}})
    volume = {**WANT, "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}}
    volume["persistentVolumeReclaimPolicy"] = "Delete"
    await api.post(VOLUMES, {"metadata": {"name": "v"}, "spec": volume})
    claim = {**WANT, "resources": {"requests": {"storage": "1Gi"}}}
    await api.post(CLAIMS, {"metadata": {"name": "data"}, "spec": claim})

    async def is_bound() -> bool:
        return bool((await api.get(f"{CLAIMS}/data")).json["status"].get("phase") == "Bound")

    async with running(Binder(Client(api.server.in_process_transport())).run()):
        await until(is_bound)
    used = {"namespace": "team", "name": "data", "uid": "of-a-deleted-claim"}
    left = {"metadata": {"name": "left"}, "spec": {**volume, "claimRef": used}}
    assert (await api.post(VOLUMES, left)).status == 201
    await api.merge(f"{VOLUMES}/left/status", {"status": {"phase": "Released"}})
    secret = {"metadata": {"name": "s"}, "data": {"a": "Yg=="}}
    made = (await api.post(f"{SPACE}/secrets", secret)).json
    reference = {"apiVersion": "v1", "kind": "Secret", "name": "s", "uid": made["metadata"]["uid"]}
    owned = {"metadata": {"name": "owned", "ownerReferences": [reference]}}
    await api.post(f"{SPACE}/configmaps", owned)
    container = {"name": "c", "image": "busybox"}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}}
    selector = {"matchLabels": {"app": "web"}}
    web = (
        await api.post(
            f"{APPS}/deployments",
            {"metadata": {"name": "web"}, "spec": {"selector": selector, "template": template}},
        )
    ).json
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "controller": True}
    reference["uid"] = web["metadata"]["uid"]
    spec = {"selector": selector, "template": template}
    rs = {"metadata": {"name": "web-1", "ownerReferences": [reference]}, "spec": spec}
    assert (await api.post(f"{APPS}/replicasets", rs)).status == 201
    mounted = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    pod = {"containers": [container], "volumes": mounted, "nodeName": "gone"}
    for name in ("bare", "ended"):
        assert (await api.post(f"{SPACE}/pods", {"metadata": {"name": name}, "spec": pod})).status == 201
    await api.merge(f"{SPACE}/pods/ended/status", {"status": {"phase": "Succeeded"}})
    await api.post(f"{SPACE}/services", {"metadata": {"name": "front"}, "spec": {"ports": [{"port": 80}]}})

    async def is_served() -> bool:
        return {(await api.get(path)).status for path in (WIDGETS, GADGETS)} == {200}

    await until(is_served)
    widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"a": 1}}
    assert (await api.post(WIDGETS, widget)).status == 201
    gadget = {"apiVersion": "example.com/v1alpha1", "kind": "Gadget", "metadata": {"name": "g"}}
    assert (await api.post(GADGETS, gadget)).status == 201
    assert (await api.merge(f"{GADGETS}/g/status", {"status": {"a": 2}})).status == 200


async def test_objects_move_with_their_bindings(served: Any, tmp_path: Path) -> None:
    file = tmp_path / "objects.json"
    async with served() as old:
        await fill(old)
        told = await volplane("export", "objects", str(file), f"--kubeconfig={old.server.kubeconfig}")
        assert f"{file}: " in told
        assert "left out: persistentvolume left (Released): its claim team/data is not exported" in told
        assert file.stat().st_mode & 0o777 == 0o600
        again = await volplane(
            "export", "objects", str(file), f"--kubeconfig={old.server.kubeconfig}", code=1
        )
        assert "File exists" in again
        before = (await old.get(f"{CLAIMS}/data")).json
    kinds = {(item["kind"], item["metadata"]["name"]) for item in json.loads(file.read_text())["items"]}
    assert {("Deployment", "web"), ("Pod", "bare"), ("Widget", "w"), ("Secret", "s")} <= kinds
    assert not kinds & {("ReplicaSet", "web-1"), ("Pod", "ended"), ("Service", "kubernetes")}
    assert {name for kind, name in kinds if kind == "PersistentVolume"} == {"v"}
    async with served() as new:
        login = f"--kubeconfig={new.server.kubeconfig}"
        async with running(Binder(Client(new.server.in_process_transport())).run()):
            told = await volplane("import", str(file), login)
            assert "not imported" not in told

            async def is_bound() -> bool:
                return bool((await new.get(f"{CLAIMS}/data")).json["status"].get("phase") == "Bound")

            await until(is_bound)
        claim, volume = (await new.get(f"{CLAIMS}/data")).json, (await new.get(f"{VOLUMES}/v")).json
        assert claim["metadata"]["uid"] != before["metadata"]["uid"]
        assert volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
        assert volume["status"]["phase"] == "Bound"
        secret, owned = [(await new.get(f"{SPACE}/{p}")).json for p in ("secrets/s", "configmaps/owned")]
        assert secret["data"] == {"a": "Yg=="}
        assert owned["metadata"]["ownerReferences"][0]["uid"] == secret["metadata"]["uid"]
        assert "nodeName" not in (await new.get(f"{SPACE}/pods/bare")).json["spec"]
        assert (await new.get(f"{WIDGETS}/w")).json["spec"] == {"a": 1}
        assert (await new.get(f"{APPS}/deployments/web")).status == 200
        assert (await new.get(f"{GADGETS}/g")).json["status"] == {"a": 2}
        # As if the first import had been killed before it wrote the status.
        await new.merge(f"{GADGETS}/g/status", {"status": None})
        told = await volplane("import", str(file), login)
        assert told.startswith("0 objects created, ")
        assert (await new.get(f"{GADGETS}/g")).json["status"] == {"a": 2}
        await new.merge(f"{GADGETS}/g/status", {"status": {"a": 3}})
        await volplane("import", str(file), login)
        assert (await new.get(f"{GADGETS}/g")).json["status"] == {"a": 3}  # its controller's


@pytest.mark.peer("kubectl")
async def test_kubectl_reads_the_file(served: Any, tmp_path: Path) -> None:
    file = tmp_path / "objects.json"
    async with served() as api:
        await fill(api)
        login = f"--kubeconfig={api.server.kubeconfig}"
        await volplane("export", "objects", str(file), login)
        command = [peers.path("kubectl"), login, "get", "-f", str(file), "-o", "name"]
        told = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert "persistentvolumeclaim/data" in told.stdout.splitlines()
        assert told.returncode == 0, told.stderr


def snapshot(**status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": "s", "namespace": "team", "uid": "u-s"},
        "spec": {"source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": "c"},
        "status": status,
    }


def test_a_snapshot_and_its_content_refer_to_each_other_by_name() -> None:
    ready = snapshot(readyToUse=True, boundVolumeSnapshotContentName="content")
    assert make_portable(ready)["spec"]["source"] == {"volumeSnapshotContentName": "content"}
    unfinished = snapshot(readyToUse=False, boundVolumeSnapshotContentName="content")
    assert make_portable(unfinished)["spec"]["source"] == {"persistentVolumeClaimName": "data"}
    content = {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": {"name": "content", "uid": "u-c", "resourceVersion": "7"},
        "spec": {
            "driver": "d",
            "source": {"volumeHandle": "vol-1"},
            "volumeSnapshotRef": {"name": "s", "namespace": "team", "uid": "u-s"},
        },
        "status": {"readyToUse": True, "snapshotHandle": "snap-1"},
    }
    assert make_portable(content) == {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": {"name": "content"},
        "spec": {
            "driver": "d",
            "source": {"snapshotHandle": "snap-1"},
            "volumeSnapshotRef": {"name": "s", "namespace": "team"},
        },
    }


@pytest.mark.parametrize(
    ("kind", "status", "is_left_out"),
    [
        (ServedKind("batch", "v1", "jobs", "Job", True, True), {"type": "Complete", "status": "True"}, True),
        (
            ServedKind("batch", "v1", "jobs", "Job", True, True),
            {"type": "Complete", "status": "False"},
            False,
        ),
        (ServedKind("batch", "v1", "jobs", "Job", True, True), {}, False),
        (ServedKind("batch.volcano.sh", "v1alpha1", "jobs", "Job", True, True), {"status": "Pending"}, False),
        (
            ServedKind("batch.volcano.sh", "v1alpha1", "jobs", "Job", True, True),
            {"type": "Complete", "status": "True"},
            False,
        ),
    ],
)
def test_only_finished_jobs_of_kubernetes_are_left_out(
    kind: ServedKind, status: dict[str, str], is_left_out: bool
) -> None:
    job = {"kind": "Job", "metadata": {"name": "j", "namespace": "team"}, "status": {"conditions": [status]}}
    assert is_made_by_cluster(kind, job) is is_left_out


def test_a_claim_loses_the_intent_of_its_provisioner() -> None:
    metadata = {
        "name": "data",
        "annotations": {PROVISIONING_INTENT_FINALIZER: "{}", "note": "mine"},
        "finalizers": ["kubernetes.io/pvc-protection", PROVISIONING_INTENT_FINALIZER],
    }
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {}}
    made = make_portable(claim)["metadata"]
    assert made["annotations"] == {"note": "mine"}
    assert made["finalizers"] == ["kubernetes.io/pvc-protection"]


class _LargeObject(dict[str, Any]):
    """An object that would take long to compare."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared whole")

    __hash__ = None


async def test_many_objects_are_not_compared_with_each_other() -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
    items = [_LargeObject({**namespace, "metadata": {"name": f"team-{n}"}}) for n in range(2)]
    async with https_apiserver() as server:
        done = await ObjectImport(server.transport()).run(items)
    assert (done.created, done.problems) == (2, ())


async def test_a_definition_that_is_not_served_is_not_waited_for() -> None:
    unserved = gadget_definition()
    unserved["spec"]["versions"][0]["served"] = False
    async with https_apiserver() as server:
        done = await ObjectImport(server.transport()).run([unserved])
    assert (done.created, done.problems) == (1, ())


async def test_a_failed_export_leaves_no_file_and_an_existing_one_is_refused_at_once(tmp_path: Path) -> None:
    config, file = tmp_path / "kubeconfig", tmp_path / "objects.json"
    config.write_text("")
    told = await volplane("export", "objects", str(file), f"--kubeconfig={config}", code=1)
    assert "File exists" not in told
    assert not file.exists()
    file.write_text("mine")
    told = await volplane("export", "objects", str(file), f"--kubeconfig={config}", code=1)
    assert f"cannot write {file}: File exists" in told
    assert file.read_text() == "mine"


def test_what_refuses_others_comes_last() -> None:
    first = ("ResourceQuota", "Pod", "Widget", "Namespace")
    names = (*first, "ValidatingWebhookConfiguration", "Service", "Ingress")
    versions = {"Widget": "example.com/v1", "Ingress": "networking.k8s.io/v1"}
    items = [{"apiVersion": versions.get(name, "v1"), "kind": name} for name in names]
    assert [item["kind"] for item in sort_for_import(items)] == [
        "Namespace",
        "Service",
        "Ingress",
        "Widget",
        "Pod",
        "ResourceQuota",
        "ValidatingWebhookConfiguration",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not JSON"),
        ("{}", "is not a List of objects"),
        ('{"kind": "List", "items": [{"kind": "Pod"}]}', "items[0] has no kind and apiVersion"),
        (
            '{"kind": "List", "items": [{"kind": "Pod", "apiVersion": "v1"}]}',
            "items[0].metadata.name: Required value",
        ),
    ],
)
async def test_a_file_that_is_something_else(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "objects.json"
    file.write_text(text)
    (tmp_path / "kubeconfig").write_text("")
    assert why in await volplane("import", str(file), f"--kubeconfig={tmp_path}/kubeconfig", code=1)
