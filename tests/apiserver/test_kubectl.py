"""The real kubectl against the real server."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.peer("kubectl")

MAP = """
apiVersion: v1
kind: ConfigMap
metadata: {name: a, labels: {app: demo}}
data: {x: "1"}
"""
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: c}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1024Mi}}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec: {containers: [{name: c, image: busybox}]}
"""


class Kubectl:
    def __init__(self, config: Path, home: Path) -> None:
        self.env = {**os.environ, "KUBECONFIG": str(config), "HOME": str(home)}

    async def __call__(self, *words: str, text: str = "", fails: bool = False) -> str:
        process = await asyncio.create_subprocess_exec(
            "kubectl",
            *words,
            env=self.env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(60):
            output, _ = await process.communicate(text.encode())
        output_text = output.decode()
        assert (process.returncode != 0) is fails, output_text
        return output_text


@pytest.fixture
def kubectl_of(tmp_path: Path) -> Any:
    return lambda api: Kubectl(api.server.kubeconfig, tmp_path)


async def test_apply_get_patch_delete(served: Any, kubectl_of: Any) -> None:
    async with served() as api:
        kubectl = kubectl_of(api)
        assert "configmap/a created" in await kubectl("apply", "-f", "-", text=MAP)
        assert "configmap/a unchanged" in await kubectl("apply", "-f", "-", text=MAP)
        changed = MAP.replace('x: "1"', 'x: "2"')
        assert "configmap/a configured" in await kubectl("apply", "-f", "-", text=changed)
        assert await kubectl("get", "cm", "a", "-o", "jsonpath={.data.x}") == "2"
        assert "configmap/a patched" in await kubectl("patch", "cm", "a", "-p", '{"data":{"y":"3"}}')
        assert "configmap/a labeled" in await kubectl("label", "cm", "a", "tier=web")
        assert "configmap/a annotated" in await kubectl("annotate", "cm", "a", "note=x")
        assert "a " in await kubectl("get", "cm", "-l", "tier=web")
        assert 'configmap "a" deleted' in await kubectl("delete", "cm", "a")
        assert "NotFound" in await kubectl("get", "cm", "a", fails=True)


async def test_a_claim_is_shown_and_described(served: Any, kubectl_of: Any) -> None:
    async with served() as api:
        kubectl = kubectl_of(api)
        await kubectl("create", "-f", "-", text=CLAIM)
        table = await kubectl("get", "pvc")
        assert table.split("\n")[0].split()[:3] == ["NAME", "STATUS", "VOLUME"]
        assert table.split("\n")[1].split()[:2] == ["c", "Pending"]
        assert "storage: 1Gi" in await kubectl("get", "pvc", "c", "-o", "yaml")
        described = await kubectl("describe", "pvc", "c")
        assert "Status:        Pending" in described
        assert "kubernetes.io/pvc-protection" in described


async def test_watching_ends_with_the_condition(served: Any, kubectl_of: Any) -> None:
    async with served() as api:
        kubectl = kubectl_of(api)
        await kubectl("create", "-f", "-", text=CLAIM)
        waiting = asyncio.create_task(
            kubectl("wait", "pvc/c", "--for=jsonpath={.status.phase}=Bound", "--timeout=30s")
        )
        path = "/api/v1/namespaces/default/persistentvolumeclaims/c/status"
        await api.merge(path, {"status": {"phase": "Bound"}})
        assert "persistentvolumeclaim/c condition met" in await waiting


async def test_error_messages_are_those_of_kubernetes(served: Any, kubectl_of: Any) -> None:
    async with served() as api:
        kubectl = kubectl_of(api)
        wrong = await kubectl("apply", "-f", "-", text=CLAIM.replace("1024Mi", '"-1Gi"'), fails=True)
        assert 'The PersistentVolumeClaim "c" is invalid' in wrong
        unknown = await kubectl("create", "-f", "-", text=CLAIM + "  colour: red\n", fails=True)
        assert 'unknown field "spec.colour"' in unknown
        assert "not found" in await kubectl("-n", "nowhere", "create", "-f", "-", text=CLAIM, fails=True)


async def test_version_and_cluster_info(served: Any, kubectl_of: Any) -> None:
    async with served() as api:
        kubectl = kubectl_of(api)
        assert "Server Version: v1.35" in await kubectl("version")
        resources = await kubectl("api-resources")
        assert "persistentvolumeclaims" in resources
        assert "volumeattachments" in resources
        assert "kube-system" in await kubectl("get", "namespaces")
        assert "FIELD: accessModes" in await kubectl("explain", "pvc.spec.accessModes")


async def test_editing_replacing_and_removing_many(served: Any, kubectl_of: Any, tmp_path: Path) -> None:
    async with served() as api:
        kubectl = kubectl_of(api)
        await kubectl("create", "-f", "-", text=MAP)
        replaced = MAP.replace('x: "1"', 'x: "5"')
        assert "configmap/a replaced" in await kubectl("replace", "-f", "-", text=replaced)
        editor = tmp_path / "editor"
        editor.write_text('#!/bin/sh\nsed -i \'s/x: .*/x: "6"/\' "$1"\n')
        editor.chmod(0o700)
        kubectl.env["EDITOR"] = str(editor)
        assert "configmap/a edited" in await kubectl("edit", "cm", "a")
        assert await kubectl("get", "cm", "a", "-o", "jsonpath={.data.x}") == "6"
        json_patch = '[{"op":"replace","path":"/data/x","value":"7"}]'
        await kubectl("patch", "cm", "a", "--type=json", "-p", json_patch)
        await kubectl("patch", "cm", "a", "--type=merge", "-p", '{"data":{"x":"8"}}')
        dry = await kubectl("apply", "--dry-run=server", "-f", "-", text=MAP)
        assert "configmap/a configured (server dry run)" in dry
        assert await kubectl("get", "cm", "a", "-o", "jsonpath={.data.x}") == "8"
        assert 'configmap "a" deleted' in await kubectl("delete", "cm", "--all")


async def test_nodes_are_cordoned_and_tainted(served: Any, kubectl_of: Any) -> None:
    async with served() as api:
        kubectl = kubectl_of(api)
        await api.post("/api/v1/nodes", {"metadata": {"name": "n1"}})
        assert "node/n1 cordoned" in await kubectl("cordon", "n1")
        assert "SchedulingDisabled" in await kubectl("get", "nodes")
        assert "node/n1 tainted" in await kubectl("taint", "nodes", "n1", "a=b:NoSchedule")
        assert "node/n1 uncordoned" in await kubectl("uncordon", "n1")
        assert "a=b:NoSchedule" in await kubectl("describe", "node", "n1")


async def test_a_deployment_is_scaled_and_its_pods_shown(served: Any, kubectl_of: Any) -> None:
    async with served() as api:
        kubectl = kubectl_of(api)
        await kubectl("apply", "-f", "-", text=DEPLOYMENT)
        assert "deployment.apps/d scaled" in await kubectl("scale", "deployment", "d", "--replicas=3")
        assert "0/3" in await kubectl("get", "deployments")
        assert "deployment.apps/d restarted" in await kubectl("rollout", "restart", "deployment/d")
        assert "No resources found" in await kubectl("get", "pods", "-A", "-o", "wide")
