"""What the cases of snapshots have in common: who works, and what a user types and sees."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

from tests.contract.provisioning.operations_env import OperationsEnv, operations_env
from tests.controllers.objects import claim
from tests.support import scripted
from tests.support.timing import is_virtual
from volplane.api import codec
from volplane.api.meta import ObjectMeta
from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent
from volplane.controllers.snapshot import role
from volplane.rules import snapshots
from volplane.sidecars.snapshotter import service as snapshotter

QUICK = {"retry_interval_start": 0.05}
NONE: Mapping[str, Any] = MappingProxyType({})
Settings = Mapping[str, Any]


@asynccontextmanager
async def roles(
    env: OperationsEnv, *, controller: Settings = NONE, sidecar: Settings = NONE
) -> AsyncIterator[OperationsEnv]:
    """The snapshot controller and the snapshotter."""

    async def controlling(client: Any, settings: Any, **_: Any) -> None:
        await role.run(client, settings, identity="me")

    chosen = role.SnapshotControllerOptions(**controller)
    async with (
        env.sidecar(controlling, chosen, "snapshot-controller"),
        env.sidecar(snapshotter.run, snapshotter.SnapshotterOptions(**sidecar), "csi-snapshotter"),
    ):
        yield env


@asynccontextmanager
async def snapshotting(
    *features: str, policy: str = "Delete", controller: Settings = NONE, sidecar: Settings = NONE
) -> AsyncIterator[OperationsEnv]:
    """Both at work, and the class `snaps`. Where time is real, a retry comes soon."""
    pauses = {} if is_virtual() else QUICK
    async with operations_env("snapshots", *features) as env:
        await snapshot_class(env, policy=policy)
        async with roles(env, controller={**pauses, **controller}, sidecar={**pauses, **sidecar}):
            yield env


async def snapshot_class(
    env: OperationsEnv,
    name: str = "snaps",
    *,
    policy: str = "Delete",
    default: bool = False,
    **parameters: Any,
) -> None:
    notes = {snapshots.IS_DEFAULT: "true"} if default else {}
    await env.client.create(
        VolumeSnapshotClass(
            metadata=ObjectMeta(name=name, annotations=notes),
            driver=scripted.NAME,
            deletion_policy=policy,
            parameters=parameters,
        )
    )


async def take(
    env: OperationsEnv, name: str = "snap", of: str = "data", cls: str | None = "snaps"
) -> VolumeSnapshot:
    spec: dict[str, Any] = {"source": {"persistentVolumeClaimName": of}}
    if cls is not None:
        spec["volumeSnapshotClassName"] = cls
    made = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
    return await env.client.create(codec.convert(VolumeSnapshot, made))


async def given(
    env: OperationsEnv,
    handle: str,
    *,
    name: str = "given",
    to: str = "snap",
    uid: str = "",
    policy: str = "Delete",
) -> VolumeSnapshotContent:
    """A content for a snapshot that is there already."""
    ref = {"name": to, "namespace": "default", **({"uid": uid} if uid else {})}
    spec = {
        "driver": scripted.NAME,
        "deletionPolicy": policy,
        "source": {"snapshotHandle": handle},
        "volumeSnapshotRef": ref,
    }
    made = {"metadata": {"name": name}, "spec": spec}
    return await env.client.create(codec.convert(VolumeSnapshotContent, made))


async def adopt(env: OperationsEnv, name: str = "snap", content: str = "given") -> VolumeSnapshot:
    spec = {"source": {"volumeSnapshotContentName": content}}
    made = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
    return await env.client.create(codec.convert(VolumeSnapshot, made))


async def get(env: OperationsEnv, name: str = "snap") -> VolumeSnapshot:
    return await env.client.get(VolumeSnapshot, name, "default")


async def content_of(env: OperationsEnv, snapshot: VolumeSnapshot) -> VolumeSnapshotContent:
    return await env.client.get(VolumeSnapshotContent, snapshots.named_content(snapshot))


async def until_snapshot(env: OperationsEnv, test: Any, name: str = "snap") -> VolumeSnapshot:
    async def found() -> VolumeSnapshot | None:
        snapshot = await env.client.find(VolumeSnapshot, name, "default")
        return snapshot if snapshot is not None and test(snapshot) else None

    snapshot: VolumeSnapshot = await env.until(found)
    return snapshot


async def until_going(env: OperationsEnv, name: str) -> VolumeSnapshotContent:
    """The content, when it is to go with its snapshot."""

    async def found() -> VolumeSnapshotContent | None:
        content = await env.client.get(VolumeSnapshotContent, name)
        return content if content.is_deleting else None

    content: VolumeSnapshotContent = await env.until(found)
    return content


async def ready(env: OperationsEnv, name: str = "snap") -> VolumeSnapshot:
    return await until_snapshot(env, snapshots.is_ready, name)


def error_of(obj: VolumeSnapshot | VolumeSnapshotContent) -> str:
    error = obj.status.error if obj.status is not None else None
    return error.message if error is not None else ""


async def drop(env: OperationsEnv, name: str = "snap") -> None:
    await env.client.delete(VolumeSnapshot, name, "default")


async def gone(env: OperationsEnv, name: str = "snap") -> None:
    await env.gone(VolumeSnapshot, name, "default")


# --- restores


def restore(name: str = "copy", size: str = "1Gi", **spec: Any) -> dict[str, Any]:
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"}
    return {"name": name, "size": size, "dataSource": source, **spec}


async def request_copy(env: OperationsEnv, name: str = "copy", size: str = "1Gi", **spec: Any) -> None:
    wanted = restore(name, size, **spec)
    await env.client.create(claim(wanted.pop("name"), wanted.pop("size"), "fast", **wanted))
