"""Section H as the real kubectl meets it."""

from __future__ import annotations

import asyncio
import os
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api_server.definitions import INTEGER, define, obj, version

pytestmark = pytest.mark.peer("kubectl")

SNAPSHOT = """
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: before-upgrade}
spec: {source: {persistentVolumeClaimName: data}}
"""
CLASS = """
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: fast}
driver: d.example.com
deletionPolicy: Delete
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
        assert (process.returncode != 0) is fails, output.decode()
        return output.decode()


async def test_snapshot_kinds_with_kubectl(served: Any, tmp_path: Path) -> None:
    manifest = str(resources.files("volplane") / "manifests" / "snapshots.yaml")
    async with served() as api:
        kubectl = Kubectl(api.server.kubeconfig, tmp_path)
        applied = await kubectl("apply", "-f", manifest)
        assert applied.count("created") == 6
        assert (await kubectl("apply", "-f", manifest)).count("unchanged") == 6
        waited = await kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", manifest)
        assert waited.count("condition met") == 6
        crds = await kubectl("get", "crd")
        assert "volumesnapshots.snapshot.storage.k8s.io" in crds
        assert "vgsclass" in await kubectl("api-resources", "--api-group=groupsnapshot.storage.k8s.io")

        explained = await kubectl("explain", "volumesnapshot.spec.source")
        assert "The claim in the same namespace whose volume is to be copied." in explained
        assert "persistentVolumeClaimName" in explained

        assert "created" in await kubectl("apply", "-f", "-", text=SNAPSHOT)
        assert "created" in await kubectl("create", "-f", "-", text=CLASS)
        unknown = SNAPSHOT.replace("before-upgrade", "x") + "  speed: 3\n"
        unknown = unknown.replace(
            "spec: {source: {persistentVolumeClaimName: data}}\n",
            "spec:\n  source: {persistentVolumeClaimName: data}\n",
        )
        assert 'unknown field "spec.speed"' in await kubectl("create", "-f", "-", text=unknown, fails=True)
        assert "is immutable" in await kubectl(
            "apply", "-f", "-", text=SNAPSHOT.replace(": data", ": other"), fails=True
        )

        status = '{"status":{"readyToUse":true,"restoreSize":"1Gi","boundVolumeSnapshotContentName":"c"}}'
        patched = await kubectl(
            "patch", "vs", "before-upgrade", "--subresource=status", "--type=merge", "-p", status
        )
        assert "patched" in patched
        header, row = (await kubectl("get", "vs")).strip().split("\n")
        assert header.split() == [
            "NAME", "READYTOUSE", "SOURCEPVC", "SOURCESNAPSHOTCONTENT", "RESTORESIZE", "SNAPSHOTCLASS",
            "SNAPSHOTCONTENT", "CREATIONTIME", "AGE",
        ]  # fmt: skip
        assert row.split()[:5] == ["before-upgrade", "true", "data", "1Gi", "c"]
        header, row = (await kubectl("get", "vsclass")).strip().split("\n")
        assert header.split() == ["NAME", "DRIVER", "DELETIONPOLICY", "AGE"]
        assert row.split()[:3] == ["fast", "d.example.com", "Delete"]
        assert "readyToUse: true" in await kubectl("get", "vs", "before-upgrade", "-o", "yaml")
        described = await kubectl("describe", "vs", "before-upgrade")
        assert "Ready To Use:" in described
        assert "labeled" in await kubectl("label", "vs", "before-upgrade", "tier=db")
        assert "before-upgrade" in await kubectl("get", "vs", "-A", "-l", "tier=db")

        deleted = await kubectl("delete", "vs", "before-upgrade")
        assert 'volumesnapshot.snapshot.storage.k8s.io "before-upgrade" deleted' in deleted
        assert (await kubectl("delete", "-f", manifest)).count("deleted") == 6
        gone = await kubectl("get", "volumesnapshots.snapshot.storage.k8s.io", fails=True)
        assert "the server doesn't have a resource type" in gone or "could not find" in gone


async def test_kubectl_explains_what_every_custom_object_has(served: Any, tmp_path: Path) -> None:
    """What Kubernetes' own tests look for in the output."""
    async with served() as api:
        kubectl = Kubectl(api.server.kubeconfig, tmp_path)
        spec = {**obj(size=INTEGER), "description": "Specification of Foo"}
        schema = {**obj(spec=spec), "description": "Foo for testing"}
        await define(api, {**version(), "schema": {"openAPIV3Schema": schema}})
        text = " ".join((await kubectl("explain", "widgets")).split())
        for part in ("Foo for testing", "apiVersion <string> APIVersion defines", "Specification of Foo"):
            assert part in text
        text = " ".join((await kubectl("explain", "widgets.metadata")).split())
        for part in ("Standard object's metadata", "<string> CreationTimestamp is a timestamp"):
            assert part in text
