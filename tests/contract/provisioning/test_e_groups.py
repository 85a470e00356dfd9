"""Groups of snapshots: contract provisioning E.5."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.contract.provisioning.operations_env import OperationsEnv, real, virtual
from tests.contract.provisioning.snapping import gone, roles, until_snapshot
from tests.support import scripted
from tests.support.scripted import Fail, Lose
from volplane.api import codec
from volplane.api.annotations import GROUP_SNAPSHOT_HANDLE_ANNOTATION
from volplane.api.meta import ObjectMeta
from volplane.api.snapshot import (
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    VolumeSnapshot,
    VolumeSnapshotContent,
)
from volplane.csi.outcome import Code
from volplane.rules import groups, snapshots

GATE = {"feature_gates": {"CSIVolumeGroupSnapshot": True}}
QUICK = {**GATE, "retry_interval_start": 0.05}


@asynccontextmanager
async def grouping(policy: str = "Delete", *, default: bool = False) -> AsyncIterator[OperationsEnv]:
    async with virtual("groups") as env:
        await group_class(env, policy, default=default)
        async with roles(env, controller=GATE, sidecar=GATE):
            yield env


async def group_class(env: OperationsEnv, policy: str = "Delete", *, default: bool = False) -> None:
    notes = {groups.IS_DEFAULT: "true"} if default else {}
    await env.client.create(
        VolumeGroupSnapshotClass(
            metadata=ObjectMeta(name="groups", annotations=notes),
            driver=scripted.NAME,
            deletion_policy=policy,
        )
    )


async def claims(env: OperationsEnv, *names: str) -> None:
    for name in names:
        await env.bound(name, metadata={"labels": {"app": "db"}})


async def take(env: OperationsEnv, name: str = "all", cls: str | None = "groups") -> VolumeGroupSnapshot:
    spec: dict[str, Any] = {"source": {"selector": {"matchLabels": {"app": "db"}}}}
    if cls is not None:
        spec["volumeGroupSnapshotClassName"] = cls
    made = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
    return await env.client.create(codec.convert(VolumeGroupSnapshot, made))


async def ready(env: OperationsEnv, name: str = "all") -> VolumeGroupSnapshot:
    async def found() -> VolumeGroupSnapshot | None:
        group = await env.client.get(VolumeGroupSnapshot, name, "default")
        return group if snapshots.is_ready(group) else None

    group: VolumeGroupSnapshot = await env.until(found)
    return group


async def test_a_group_is_taken_at_once_and_its_members_go_with_it() -> None:
    async with real("groups") as env:
        await group_class(env)
        async with roles(env, controller=QUICK, sidecar=QUICK):
            await claims(env, "data", "logs")
            await env.bound("other")
            made = await take(env)
            await ready(env)
            content = await env.client.get(VolumeGroupSnapshotContent, f"groupsnapcontent-{made.uid}")
            handles = sorted([f"vol-{(await env.claim(n)).spec.volume_name}" for n in ("data", "logs")])
            assert content.spec.source.volume_handles == tuple(handles)
            assert content.metadata.finalizers == (groups.CONTENT_BOUND,)
            (request,) = env.driver.requests_of("CreateVolumeGroupSnapshot")
            assert request.name == f"groupsnapshot-{made.uid}"
            assert sorted(request.source_volume_ids) == handles
            assert env.driver.requests_of("CreateSnapshot") == []
            digests = [hashlib.sha256((made.uid + handle).encode()).hexdigest() for handle in handles]
            for digest in digests:
                member = await until_snapshot(env, snapshots.is_ready, f"snapshot-{digest}")
                assert member.status is not None
                assert member.status.volume_group_snapshot_name == "all"
                assert member.status.restore_size == "1Gi"
                assert [owner.uid for owner in member.metadata.owner_references] == [made.uid]
                assert snapshots.IN_GROUP in member.metadata.finalizers
                part = await env.client.get(VolumeSnapshotContent, f"snapcontent-{digest}")
                assert (
                    part.metadata.annotations[GROUP_SNAPSHOT_HANDLE_ANNOTATION]
                    == f"group-groupsnapshot-{made.uid}"
                )
            await env.said("GroupSnapshotReady", "all")
            await env.client.delete(VolumeGroupSnapshot, "all", "default")
            await env.gone(VolumeGroupSnapshot, "all", "default")
            for digest in digests:
                await gone(env, f"snapshot-{digest}")
                await env.gone(VolumeSnapshotContent, f"snapcontent-{digest}")
            await env.gone(VolumeGroupSnapshotContent, content.name)
            assert env.driver.snapshots == {}
            assert env.driver.requests_of("DeleteSnapshot") == []
            assert len(env.driver.requests_of("DeleteVolumeGroupSnapshot")) == 1


@pytest.mark.virtual
async def test_a_member_cannot_be_deleted_alone() -> None:
    async with grouping() as env:
        await claims(env, "data")
        await take(env)
        await ready(env)
        (member,) = await env.client.list(VolumeSnapshot, "default")
        await until_snapshot(env, snapshots.is_ready, member.name)
        await env.client.delete(VolumeSnapshot, member.name, "default")
        reported = await env.said("SnapshotDeletePending", member.name)
        assert "is not allowed as it belongs to group snapshot default/all" in reported
        await asyncio.sleep(1200)
        assert len(env.driver.snapshots) == 1
        await env.client.delete(VolumeGroupSnapshot, "all", "default")
        await gone(env, member.name)
        await env.gone(VolumeGroupSnapshot, "all", "default")
        assert env.driver.snapshots == {}


@pytest.mark.virtual
async def test_a_member_is_restored_like_any_snapshot() -> None:
    async with grouping() as env:
        await claims(env, "data")
        await take(env)
        await ready(env)
        (member,) = await env.client.list(VolumeSnapshot, "default")
        source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": member.name}
        await env.bound("copy", dataSource=source)


@pytest.mark.virtual
async def test_retain_keeps_the_contents_of_the_group() -> None:
    async with grouping("Retain") as env:
        await claims(env, "data")
        made = await take(env)
        await ready(env)
        await env.client.delete(VolumeGroupSnapshot, "all", "default")
        await env.gone(VolumeGroupSnapshot, "all", "default")
        await asyncio.sleep(60)
        assert await env.client.get(VolumeGroupSnapshotContent, snapshots.content_name(made))
        assert env.driver.requests_of("DeleteVolumeGroupSnapshot") == []
        assert len(env.driver.snapshots) == 1


@pytest.mark.virtual
async def test_a_group_that_timed_out_is_found_again_before_it_goes() -> None:
    async with grouping() as env:
        env.driver.script("CreateVolumeGroupSnapshot", Lose(Code.DEADLINE_EXCEEDED), Fail(Code.ABORTED))
        await claims(env, "data", "logs")
        made = await take(env)
        await env.said("GroupSnapshotCreationFailed", snapshots.content_name(made))
        await env.client.delete(VolumeGroupSnapshot, "all", "default")
        await env.gone(VolumeGroupSnapshot, "all", "default")
        await env.gone(VolumeGroupSnapshotContent, snapshots.content_name(made))
        assert env.driver.snapshots == {}
        assert await env.client.list(VolumeSnapshot) == []


@pytest.mark.virtual
async def test_the_default_class_is_taken_and_a_selector_that_finds_nothing_waits() -> None:
    async with grouping(default=True) as env:
        await take(env, cls=None)
        reported = await env.said("SetDefaultGroupSnapshotClassFailed", "all")
        assert "not applied to any PVC" in reported
        await claims(env, "data")
        group = await ready(env)
        assert group.spec.volume_group_snapshot_class_name == "groups"


@pytest.mark.virtual
async def test_a_group_that_is_there_already_is_adopted() -> None:
    async with grouping() as env:
        await claims(env, "data")
        await take(env)
        first = await ready(env)
        known = await env.client.get(VolumeGroupSnapshotContent, snapshots.bound_name(first))
        assert known.status is not None
        handles = {
            "volumeGroupSnapshotHandle": known.status.volume_group_snapshot_handle,
            "volumeSnapshotHandles": [i.snapshot_handle for i in known.status.volume_snapshot_info_list],
        }
        spec = {
            "driver": scripted.NAME,
            "deletionPolicy": "Retain",
            "source": {"groupSnapshotHandles": handles},
            "volumeGroupSnapshotRef": {"name": "again", "namespace": "default"},
        }
        content = {"metadata": {"name": "given"}, "spec": spec}
        await env.client.create(codec.convert(VolumeGroupSnapshotContent, content))
        group = {
            "metadata": {"name": "again", "namespace": "default"},
            "spec": {"source": {"volumeGroupSnapshotContentName": "given"}},
        }
        await env.client.create(codec.convert(VolumeGroupSnapshot, group))
        await ready(env, "again")
        assert len(env.driver.requests_of("GetVolumeGroupSnapshot")) == 1


@pytest.mark.virtual
async def test_with_its_gate_off_no_group_is_taken() -> None:
    async with virtual("groups") as env:
        await group_class(env)
        async with roles(env):
            await claims(env, "data")
            await take(env)
            await asyncio.sleep(60)
            assert env.driver.requests_of("CreateVolumeGroupSnapshot") == []
