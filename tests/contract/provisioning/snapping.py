"""What the cases of snapshots have in common: who works, and what a user types and sees."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

from tests.contract.provisioning.scene import Stage, played
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
    stage: Stage, *, controller: Settings = NONE, sidecar: Settings = NONE
) -> AsyncIterator[Stage]:
    """The snapshot controller and the snapshotter."""

    async def controlling(client: Any, settings: Any, **_: Any) -> None:
        await role.run(client, settings, identity="me")

    chosen = role.SnapshotControllerOptions(**controller)
    async with (
        stage.sidecar(controlling, chosen, "snapshot-controller"),
        stage.sidecar(snapshotter.run, snapshotter.SnapshotterOptions(**sidecar), "csi-snapshotter"),
    ):
        yield stage


@asynccontextmanager
async def snapshotting(
    *features: str, policy: str = "Delete", controller: Settings = NONE, sidecar: Settings = NONE
) -> AsyncIterator[Stage]:
    """Both at work, and the class `snaps`. Where time is real, a retry comes soon."""
    pauses = {} if is_virtual() else QUICK
    async with played("snapshots", *features) as stage:
        await snapshot_class(stage, policy=policy)
        async with roles(stage, controller={**pauses, **controller}, sidecar={**pauses, **sidecar}):
            yield stage


async def snapshot_class(
    stage: Stage, name: str = "snaps", *, policy: str = "Delete", default: bool = False, **parameters: Any
) -> None:
    notes = {snapshots.IS_DEFAULT: "true"} if default else {}
    await stage.client.create(
        VolumeSnapshotClass(
            metadata=ObjectMeta(name=name, annotations=notes),
            driver=scripted.NAME,
            deletion_policy=policy,
            parameters=parameters,
        )
    )


async def take(
    stage: Stage, name: str = "snap", of: str = "data", cls: str | None = "snaps"
) -> VolumeSnapshot:
    spec: dict[str, Any] = {"source": {"persistentVolumeClaimName": of}}
    if cls is not None:
        spec["volumeSnapshotClassName"] = cls
    made = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
    return await stage.client.create(codec.convert(VolumeSnapshot, made))


async def given(
    stage: Stage, handle: str, *, name: str = "given", to: str = "snap", uid: str = "", policy: str = "Delete"
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
    return await stage.client.create(codec.convert(VolumeSnapshotContent, made))


async def adopt(stage: Stage, name: str = "snap", content: str = "given") -> VolumeSnapshot:
    spec = {"source": {"volumeSnapshotContentName": content}}
    made = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
    return await stage.client.create(codec.convert(VolumeSnapshot, made))


async def get(stage: Stage, name: str = "snap") -> VolumeSnapshot:
    return await stage.client.get(VolumeSnapshot, name, "default")


async def content_of(stage: Stage, snapshot: VolumeSnapshot) -> VolumeSnapshotContent:
    return await stage.client.get(VolumeSnapshotContent, snapshots.named_content(snapshot))


async def until_snapshot(stage: Stage, test: Any, name: str = "snap") -> VolumeSnapshot:
    async def found() -> VolumeSnapshot | None:
        snapshot = await stage.client.find(VolumeSnapshot, name, "default")
        return snapshot if snapshot is not None and test(snapshot) else None

    snapshot: VolumeSnapshot = await stage.until(found)
    return snapshot


async def until_going(stage: Stage, name: str) -> VolumeSnapshotContent:
    """The content, when it is to go with its snapshot."""

    async def found() -> VolumeSnapshotContent | None:
        content = await stage.client.get(VolumeSnapshotContent, name)
        return content if content.is_deleting else None

    content: VolumeSnapshotContent = await stage.until(found)
    return content


async def ready(stage: Stage, name: str = "snap") -> VolumeSnapshot:
    return await until_snapshot(stage, snapshots.is_ready, name)


def error_of(obj: VolumeSnapshot | VolumeSnapshotContent) -> str:
    error = obj.status.error if obj.status is not None else None
    return error.message if error is not None else ""


async def drop(stage: Stage, name: str = "snap") -> None:
    await stage.client.delete(VolumeSnapshot, name, "default")


async def gone(stage: Stage, name: str = "snap") -> None:
    await stage.gone(VolumeSnapshot, name, "default")


# --- restores


def restore(name: str = "copy", size: str = "1Gi", **spec: Any) -> dict[str, Any]:
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"}
    return {"name": name, "size": size, "dataSource": source, **spec}


async def wish(stage: Stage, name: str = "copy", size: str = "1Gi", **spec: Any) -> None:
    wanted = restore(name, size, **spec)
    await stage.client.create(claim(wanted.pop("name"), wanted.pop("size"), "fast", **wanted))
