"""Upstream's kube-scheduler, unmodified and with its own kubeconfig, on our API server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.apiserver.conftest import Api, served
from tests.loops.inprocess import until
from tests.support import peers
from tests.support.up import Up, wait_until
from volplane.apiserver.auth import kubeconfig
from volplane.apiserver.auth.certificates import CertificateAuthority

__all__ = ["served"]

pytestmark = [pytest.mark.slow, pytest.mark.peer("kube-scheduler")]

PATIENCE = 120.0
USER = "system:kube-scheduler"
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "resource.k8s.io"


@contextmanager
def scheduler(log: Path, *flags: str) -> Iterator[Callable[[], str]]:
    """Its process, ended by its pid; gives what it has logged."""
    argv = [peers.path("kube-scheduler"), "--secure-port=0", *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield log.read_text
    finally:
        process.terminate()
        process.wait(PATIENCE)


# --- the API server alone


def pod(name: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "busybox"}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


async def furnish(api: Api) -> None:
    """One node that could take pods, and the account that pods have."""
    await api.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
    assert (await api.post("/api/v1/nodes", {"metadata": {"name": "n1"}})).status == 201
    await api.merge("/api/v1/nodes/n1", {"spec": {"taints": None}})
    room = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"capacity": room, "allocatable": room, "conditions": [ready]}
    assert (await api.merge("/api/v1/nodes/n1/status", {"status": status})).status == 200


@asynccontextmanager
async def scheduling(api: Api, log: Path) -> AsyncIterator[Callable[[], str]]:
    config = api.server.write_kubeconfig(log.with_suffix(".kubeconfig"), USER)
    with scheduler(log, f"--kubeconfig={config}") as reported:
        yield reported


async def test_without_device_kinds_it_waits_and_with_empty_lists_it_schedules(
    served: Any, tmp_path: Path
) -> None:
    async with served() as api:
        registry = api.server.backend.registry
        kinds = [entry.kind for entry in registry if entry.kind.group == CLAIMS]
        for kind in kinds:
            registry.remove(kind)
        await furnish(api)
        assert (await api.post(PODS, pod("waits"))).status == 201

        async def node(name: str) -> str:
            found: str = (await api.get(f"{PODS}/{name}")).json["spec"].get("nodeName", "")
            return found

        async with scheduling(api, tmp_path / "scheduler.log") as reported:

            async def misses_them() -> bool:
                return "ResourceClaim" in reported() and "could not find the requested resource" in reported()

            await until(misses_them, PATIENCE)
            assert await node("waits") == ""
            for kind in kinds:
                registry.add(kind)
            await until(lambda: node("waits"), PATIENCE)
            assert await node("waits") == "n1"
            held = (
                await api.get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler")
            ).json
            assert held["spec"]["holderIdentity"]

            assert (await api.post(PODS, pod("nowhere", nodeSelector={"disk": "none"}))).status == 201

            async def complaints() -> list[str]:
                events = (await api.get("/apis/events.k8s.io/v1/namespaces/default/events")).json["items"]
                return [e["note"] for e in events if e["reason"] == "FailedScheduling"]

            (note, *_) = await until(complaints, PATIENCE)
            assert note.startswith(
                "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector"
            )

            async def condition() -> Any:
                status = (await api.get(f"{PODS}/nowhere")).json["status"]
                return next((c for c in status.get("conditions", ()) if c["type"] == "PodScheduled"), None)

            found = await until(condition, PATIENCE)
            assert (found["status"], found["reason"]) == ("False", "Unschedulable")
            assert "forbidden" not in reported()


# --- a cluster, whose own scheduler leaves these pods alone

CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: late}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: late
  resources: {requests: {storage: 1Gi}}
"""
CLASS = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: late}
provisioner: ebs.csi.aws.com
volumeBindingMode: WaitForFirstConsumer
"""


def configured(up: Up, directory: Path) -> Path:
    """Upstream's configuration: the scheduler of pods that ask for `upstream`."""
    authority = CertificateAuthority(up.directory / "pki")
    path = directory / "kube-scheduler.kubeconfig"
    pair = authority.client("client-kube-scheduler", USER, ())
    server = yaml.safe_load(Path(up.kubeconfig).read_text())["clusters"][0]["cluster"]["server"]
    kubeconfig.write(path, server=server, ca=authority.pair.cert, user=USER, pair=pair)
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(path)},
        "profiles": [{"schedulerName": "upstream"}],
    }
    made = directory / "scheduler.json"
    made.write_text(json.dumps(config))
    return made


@pytest.mark.root
@pytest.mark.peer("kubectl")
def test_a_volume_is_made_where_upstreams_scheduler_puts_its_pod(tmp_path: Path) -> None:
    cluster = Up(nodes=2)
    with cluster as up:
        up.apply(CLASS)
        up.apply(CLAIM)
        mount = {"name": "data", "mountPath": "/data"}
        command = ["sh", "-c", "echo here > /data/file; sleep infinity"]
        container = {"name": "c", "image": "busybox", "command": command, "volumeMounts": [mount]}
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": "late"}}
        spec = {
            "schedulerName": "upstream",
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "volumes": [volume],
        }
        user = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user"}, "spec": spec}
        up.apply(json.dumps(user))
        with scheduler(tmp_path / "scheduler.log", f"--config={configured(up, tmp_path)}") as reported:
            wait_until("it runs", lambda: up.get("pod", "user")["status"]["phase"] == "Running", PATIENCE)
            node = up.get("pod", "user")["spec"]["nodeName"]
            claim = up.get("pvc", "late")
            assert claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == node
            assert claim["status"]["phase"] == "Bound"
            assert up.kubectl("exec", "user", "--", "cat", "/data/file") == "here\n"
            up.describe("pod", "user", f"Successfully assigned default/user to {node}")
            assert "forbidden" not in reported()
        up.kubectl("delete", "pod", "user")
        up.kubectl("delete", "pvc", "late")
        wait_until("no volume is left", lambda: up.kubectl("get", "pv", "-o", "name") == "", PATIENCE)
    assert cluster.leftovers() == {}
