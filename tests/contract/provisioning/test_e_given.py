"""Snapshots that are there already: contract provisioning E.3, and E's cases to test."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.provisioning.operations_env import virtual
from tests.contract.provisioning.snapping import (
    adopt,
    content_of,
    error_of,
    get,
    given,
    ready,
    snapshotting,
    take,
    until_snapshot,
)
from tests.loops.inprocess import running
from volplane.api.errors import Forbidden
from volplane.api.snapshot import VolumeSnapshotContent
from volplane.client.client import Client
from volplane.controllers.snapshot.controller import VolumeSnapshots
from volplane.rules import snapshots

both = pytest.mark.both


async def test_a_snapshot_that_is_there_already_is_adopted() -> None:
    async with snapshotting("list-snapshots") as env:
        await env.bound()
        await take(env, "first")
        first = await ready(env, "first")
        handle = (await content_of(env, first)).status.snapshot_handle  # type: ignore[union-attr]
        assert handle is not None
        await given(env, handle)
        made = await adopt(env)
        snapshot = await ready(env)
        content = await content_of(env, snapshot)
        assert content.spec.volume_snapshot_ref.uid == made.uid
        assert snapshot.status is not None
        assert snapshot.status.restore_size == "1Gi"
        (request,) = env.driver.requests_of("ListSnapshots")
        assert request.snapshot_id == handle
        assert len(env.driver.requests_of("CreateSnapshot")) == 1


@pytest.mark.virtual
async def test_a_driver_without_a_list_is_believed() -> None:
    async with snapshotting() as env:
        await given(env, "snap-known")
        await adopt(env)
        snapshot = await ready(env)
        assert snapshot.status is not None
        assert snapshot.status.restore_size is None


@both
async def test_a_content_that_is_missing_is_waited_for() -> None:
    async with snapshotting() as env:
        await adopt(env)
        assert await env.said("SnapshotContentMissing", "snap") == "VolumeSnapshotContent is missing"
        await given(env, "snap-known")
        await ready(env)


@pytest.mark.virtual
async def test_a_content_of_the_wrong_kind_is_not_bound() -> None:
    async with snapshotting() as env:
        await env.bound()
        made = await take(env)
        await ready(env)
        await adopt(env, "thief", snapshots.content_name(made))
        reported = await env.said("SnapshotContentMismatch", "thief")
        which = "is dynamically provisioned while expecting a pre-provisioned one"
        assert reported == f"VolumeSnapshotContent {which}"
        assert not snapshots.bound_name(await get(env, "thief"))


@both
async def test_a_content_that_points_to_another_snapshots_uid_is_never_bound() -> None:
    async with snapshotting() as env:
        await given(env, "snap-known", uid="somebody-else")
        await adopt(env)
        reported = await env.said("SnapshotContentMisbound", "snap")
        assert reported == "VolumeSnapshotContent [given] is bound to a different snapshot"
        await env.rest(1200)
        snapshot = await get(env)
        assert not snapshots.is_ready(snapshot)
        assert not snapshots.bound_name(snapshot)
        content = await env.client.get(VolumeSnapshotContent, "given")
        assert content.spec.volume_snapshot_ref.uid == "somebody-else"


@both
async def test_a_bound_snapshot_whose_content_is_gone_is_no_longer_ready() -> None:
    async with snapshotting() as env:
        await env.bound()
        await take(env)
        snapshot = await ready(env)
        name = snapshots.bound_name(snapshot)
        stripped: dict[str, Any] = {"metadata": {"finalizers": []}}
        await env.client.delete(VolumeSnapshotContent, name)
        await env.client.patch(VolumeSnapshotContent, name, merge=stripped)
        snapshot = await until_snapshot(env, lambda s: not snapshots.is_ready(s))
        assert error_of(snapshot) == "VolumeSnapshotContent is missing"
        await env.rest(1200)
        # No second snapshot is taken in the first one's name: it would show another moment.
        assert await env.client.find(VolumeSnapshotContent, name) is None
        assert len(env.driver.requests_of("CreateSnapshot")) == 1


@both
async def test_a_bound_snapshot_whose_content_points_elsewhere_is_misbound() -> None:
    async with snapshotting() as env:
        await given(env, "snap-known")
        await adopt(env)
        await ready(env)
        other = {"spec": {"volumeSnapshotRef": {"uid": "somebody-else"}}}
        await env.client.patch(VolumeSnapshotContent, "given", merge=other)
        reported = await env.said("SnapshotMisbound", "snap")
        assert reported == "VolumeSnapshotContent is not bound to the VolumeSnapshot correctly"
        assert not snapshots.is_ready(await get(env))


class Refusing:
    """A transport that may not bind contents."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    async def patch(
        self, type: type[Any], name: str, namespace: str, patch: Any, *rest: Any, **more: Any
    ) -> Any:
        if type is VolumeSnapshotContent and "spec" in patch:
            raise Forbidden("not you")
        return await self._transport.patch(type, name, namespace, patch, *rest, **more)


@pytest.mark.virtual
async def test_a_content_that_cannot_be_bound_is_told_on_the_snapshot() -> None:
    async with virtual("snapshots") as env:
        client = Client(Refusing(env.client.transport), component="snapshot-controller")
        async with running(VolumeSnapshots(client).run()):
            await given(env, "snap-known")
            await adopt(env)
            reported = await env.said("SnapshotBindFailed", "snap")
            assert reported == "Snapshot failed to bind VolumeSnapshotContent, not you"
        await client.close()
