"""Protobuf requests and JSON responses, as Go clients use them by default."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from volplane.api.kinds import Kind

TYPE = "application/vnd.kubernetes.protobuf"
SAMPLES = {
    s["name"]: bytes.fromhex(s["protobuf"])
    for s in json.loads((Path(__file__).parents[1] / "apiserver_rules" / "protobuf.samples.json").read_text())
}
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
DEFAULT_CLASS = {
    "metadata": {"name": "std", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "x",
}


async def test_a_lease_is_created_and_renewed_with_protobuf(served: Any) -> None:
    async with served() as api:
        made = await api.post(LEASES, SAMPLES["a lease"], type=TYPE, accept=f"{TYPE},application/json")
        assert made.status == 201, made.json
        assert made.headers.get("content-type") == "application/json"
        assert made.json["spec"]["renewTime"] == "2026-01-02T03:04:05.000000Z"
        assert made.json["spec"]["leaseTransitions"] == 0
        refused = await api.call("PUT", f"{LEASES}/leader", SAMPLES["a released lease"], type=TYPE)
        assert refused.status == 422  # an update of a Lease needs its resourceVersion


async def test_an_empty_storage_class_stays_empty_and_a_missing_one_is_defaulted(served: Any) -> None:
    async with served() as api:
        await api.post("/apis/storage.k8s.io/v1/storageclasses", DEFAULT_CLASS)
        empty = await api.post(CLAIMS, SAMPLES["a claim with the empty class"], type=TYPE)
        assert empty.json["spec"]["storageClassName"] == ""
        await api.delete(f"{CLAIMS}/c")
        await api.merge(f"{CLAIMS}/c", {"metadata": {"finalizers": None}})
        filled = await api.post(CLAIMS, SAMPLES["a claim without a class"], type=TYPE)
        assert filled.json["spec"]["storageClassName"] == "std"


async def test_a_volume_is_deleted_with_options_in_protobuf(served: Any) -> None:
    async with served() as api:
        made = await api.post("/api/v1/persistentvolumes", SAMPLES["a volume"], type=TYPE)
        assert made.json["spec"]["csi"]["volumeHandle"] == "vol-1"
        path = "/api/v1/persistentvolumes/pv"
        stranger = await api.call("DELETE", path, SAMPLES["delete options"], type=TYPE)
        assert stranger.status == 409  # the options name another uid
        gone = await api.call("DELETE", path, SAMPLES["empty delete options"], type=TYPE)
        assert (gone.status, gone.json["kind"]) == (200, "PersistentVolume")


async def test_strict_validation_accepts_protobuf_bodies(served: Any) -> None:
    async with served() as api:
        path = "/apis/storage.k8s.io/v1/csinodes?fieldValidation=Strict"
        made = await api.post(path, SAMPLES["a csi node"], type=TYPE)
        assert made.status == 422  # its second driver has no name; validation is the same as for JSON
        assert "spec.drivers[1].name" in made.json["message"]


async def test_an_unreadable_body_is_a_bad_request(served: Any) -> None:
    async with served() as api:
        for body in (b"k8s\x00", b"k8s\x00\x12\x7f", b"junk", SAMPLES["a lease"][:-40]):
            answer = await api.post(LEASES, body, type=TYPE)
            assert (answer.status, answer.json["reason"]) == (400, "BadRequest"), body
        other = await api.post(LEASES, SAMPLES["a volume"], type=TYPE)
        assert other.status == 400
        options = await api.call("DELETE", f"{LEASES}/x", b"k8s\x00\x12\x7f", type=TYPE)
        assert options.status == 400


async def test_custom_resources_do_not_accept_protobuf(served: Any) -> None:
    async with served() as api:
        api.server.backend.registry.add(Kind(None, "example.com", "v1", "Thing", "things"))
        path = "/apis/example.com/v1/namespaces/default/things"
        answer = await api.post(path, SAMPLES["a lease"], type=TYPE)
        assert (answer.status, answer.json["reason"]) == (415, "UnsupportedMediaType")
        patch = await api.call("PATCH", f"{LEASES}/x", SAMPLES["a lease"], type=TYPE)
        assert patch.status == 415


@pytest.mark.peer("kubectl")
async def test_the_typed_commands_of_kubectl(served: Any, tmp_path: Path) -> None:
    async with served() as api:
        env = {**os.environ, "KUBECONFIG": str(api.server.kubeconfig), "HOME": str(tmp_path)}

        async def kubectl(*words: str) -> str:
            process = await asyncio.create_subprocess_exec(
                "kubectl", *words, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            async with asyncio.timeout(60):
                output, _ = await process.communicate()
            assert process.returncode == 0, output.decode()
            return output.decode()

        assert "serviceaccount/x created" in await kubectl("create", "sa", "x")
        literal = ("--from-literal=k=v", "--from-literal=empty=")
        assert "secret/s created" in await kubectl("create", "secret", "generic", "s", *literal)
        assert await kubectl("get", "secret", "s", "-o", "jsonpath={.data.k}") == "dg=="
        assert (await kubectl("create", "token", "x")).count(".") == 2
        assert "yes" in await kubectl("auth", "can-i", "create", "pods")
        assert "kubernetes-admin" in await kubectl("auth", "whoami")
        assert "*.*" in await kubectl("auth", "can-i", "--list")
        assert "configmap/m created" in await kubectl("create", "configmap", "m", "--from-literal=a=b")
        assert "namespace/n created" in await kubectl("create", "namespace", "n")
        made = await kubectl("create", "deployment", "d", "--image=busybox", "--replicas=2")
        assert "deployment.apps/d created" in made
