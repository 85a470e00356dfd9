"""How snapshots end, and restores from them: contract provisioning E.4, and E's cases to test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.provisioning.operations_env import operations_env
from tests.contract.provisioning.snapping import (
    adopt,
    content_of,
    drop,
    given,
    gone,
    ready,
    request_copy,
    restore,
    snapshot_class,
    snapshotting,
    take,
    until_going,
    until_snapshot,
)
from tests.support.scripted import Delay, Fail, Hold, Lose
from volplane.api.core import PersistentVolumeClaim
from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotContent
from volplane.controllers.snapshot.controller import VolumeSnapshots
from volplane.csi.outcome import Code
from volplane.rules import snapshots
from volplane.sidecars.snapshotter import service as snapshotter

both = pytest.mark.both


@both
async def test_a_snapshot_whose_taking_timed_out_is_found_again_before_it_goes() -> None:
    async with snapshotting() as env:
        hold = Hold(then=Fail(Code.UNAVAILABLE))
        env.driver.script("CreateSnapshot", Lose(Code.DEADLINE_EXCEEDED), hold)
        await env.bound()
        made = await take(env)
        name = snapshots.content_name(made)
        await env.said("SnapshotCreationFailed", name)
        await drop(env)
        content = await until_going(env, name)
        assert content.metadata.annotations[snapshots.BEING_CREATED] == "yes"
        assert content.metadata.annotations[snapshots.BEING_DELETED] == "yes"
        assert len(env.driver.snapshots) == 1
        hold.release()
        await gone(env)
        await env.gone(VolumeSnapshotContent, name)
        assert env.driver.snapshots == {}
        assert len(env.driver.requests_of("CreateSnapshot")) == 3
        assert len(env.driver.requests_of("DeleteSnapshot")) == 1
        claim = await env.claim()
        assert snapshots.CLAIM_AS_SOURCE not in claim.metadata.finalizers


@both
async def test_a_snapshot_deleted_before_the_sidecar_saw_it_goes_without_a_call() -> None:
    async with operations_env("snapshots") as env, env.controllers(VolumeSnapshots):
        await snapshot_class(env)
        await env.bound()
        made = await take(env)
        name = snapshots.content_name(made)
        await until_snapshot(env, snapshots.bound_name)
        await drop(env)
        await until_going(env, name)
        async with env.sidecar(snapshotter.run, snapshotter.SnapshotterOptions()):
            await gone(env)
            await env.gone(VolumeSnapshotContent, name)
        assert env.driver.requests_of("CreateSnapshot") == []
        assert env.driver.requests_of("DeleteSnapshot") == []


@both
async def test_the_source_claim_is_held_until_the_snapshot_is_ready() -> None:
    async with snapshotting() as env:
        env.driver.script("CreateSnapshot", hold := Hold())
        await env.bound()
        await take(env)
        await hold.reached_event.wait()
        await env.client.delete(PersistentVolumeClaim, "data", "default")
        await env.rest(30)
        assert snapshots.CLAIM_AS_SOURCE in (await env.claim()).metadata.finalizers
        assert env.driver.requests_of("DeleteVolume") == []
        hold.release()
        await ready(env)
        await env.gone(PersistentVolumeClaim, "data", "default")


@pytest.mark.virtual
async def test_a_claim_that_is_going_gives_no_snapshot() -> None:
    async with snapshotting() as env:
        await env.bound()
        held = {"metadata": {"finalizers": ["example.com/hold"]}}
        await env.client.patch(PersistentVolumeClaim, "data", "default", strategic=held)
        await env.client.delete(PersistentVolumeClaim, "data", "default")
        await take(env)
        reported = await env.said("SnapshotContentCreationFailed", "snap")
        assert reported.endswith("cannot add finalizer on claim data because it is being deleted")
        assert env.driver.requests_of("CreateSnapshot") == []


@both
async def test_retain_keeps_the_content_and_it_can_be_imported_again() -> None:
    async with snapshotting("list-snapshots", policy="Retain") as env:
        await env.bound()
        made = await take(env)
        snapshot = await ready(env)
        assert snapshot.metadata.finalizers == (snapshots.AS_SOURCE,)
        await drop(env)
        await gone(env)
        content = await env.client.get(VolumeSnapshotContent, snapshots.content_name(made))
        assert content.metadata.annotations[snapshots.BEING_DELETED] == "yes"
        assert not content.is_deleting
        assert content.status is not None
        handle = content.status.snapshot_handle
        assert handle is not None
        assert env.driver.requests_of("DeleteSnapshot") == []
        await given(env, handle, name="import", to="again")
        await adopt(env, "again", "import")
        again = await ready(env, "again")
        assert again.status is not None
        assert again.status.restore_size == "1Gi"
        # The kept content goes at its owner's word, and the snapshot behind it stays.
        await env.client.delete(VolumeSnapshotContent, content.name)
        await env.gone(VolumeSnapshotContent, content.name)
        assert len(env.driver.snapshots) == 1


@both
async def test_a_content_deleted_while_its_snapshot_lives_stays() -> None:
    async with snapshotting() as env:
        await env.bound()
        await take(env)
        name = snapshots.bound_name(await ready(env))
        await env.client.delete(VolumeSnapshotContent, name)
        await env.rest(1200)
        assert (await env.client.get(VolumeSnapshotContent, name)).is_deleting
        assert env.driver.requests_of("DeleteSnapshot") == []
        await drop(env)
        await gone(env)
        assert env.driver.snapshots == {}


@both
async def test_a_content_whose_snapshot_is_missing_is_never_deleted() -> None:
    async with snapshotting() as env:
        await given(env, "snap-known", uid="long-gone")
        await env.rest(3600)
        content = await env.client.get(VolumeSnapshotContent, "given")
        assert not content.is_deleting
        assert env.driver.requests_of("DeleteSnapshot") == []


@pytest.mark.virtual
async def test_a_given_content_nobody_named_goes_with_its_policy() -> None:
    async with snapshotting() as env:
        await given(env, "snap-known")
        await asyncio.sleep(5)
        await env.client.delete(VolumeSnapshotContent, "given")
        await env.gone(VolumeSnapshotContent, "given")


@both
async def test_a_deletion_that_fails_is_told_and_repeated() -> None:
    async with snapshotting() as env:
        await env.bound()
        made = await take(env)
        await ready(env)
        env.driver.script("DeleteSnapshot", Fail(Code.INTERNAL))
        await drop(env)
        reported = await env.said("SnapshotDeleteError", snapshots.content_name(made))
        assert reported == "Failed to delete snapshot"
        await gone(env)
        assert len(env.driver.requests_of("DeleteSnapshot")) == 2


async def test_a_snapshot_is_restored_into_a_new_claim() -> None:
    async with snapshotting() as env:
        await env.bound()
        await take(env)
        content = await content_of(env, await ready(env))
        assert content.status is not None
        await env.bound("copy", **{k: v for k, v in restore().items() if k == "dataSource"})
        request = env.driver.requests_of("CreateVolume")[-1]
        assert request.volume_content_source.snapshot.snapshot_id == content.status.snapshot_handle


@both
async def test_a_restore_smaller_than_the_snapshot_is_refused() -> None:
    async with snapshotting() as env:
        await env.bound(size="2Gi")
        await take(env)
        await ready(env)
        await request_copy(env, size="1Gi")
        await env.said("ProvisioningFailed", "copy")
        assert len(env.driver.requests_of("CreateVolume")) == 1
        await request_copy(env, "fits", "2Gi")
        await env.until_claim(lambda c: c.status.phase == "Bound", "fits")


@both
async def test_a_restore_of_a_snapshot_that_is_not_ready_is_tried_until_it_is() -> None:
    async with snapshotting() as env:
        env.driver.ready_after = 3
        env.driver.script("CreateSnapshot", Delay(0), hold := Hold())
        await env.bound()
        await take(env)
        await hold.reached_event.wait()
        await request_copy(env)
        await env.said("ProvisioningFailed", "copy")
        hold.release()
        await env.until_claim(lambda c: c.status.phase == "Bound", "copy")


@both
async def test_a_block_volumes_snapshot_becomes_no_file_system_without_leave() -> None:
    async with snapshotting() as env:
        await env.bound(volumeMode="Block")
        await take(env)
        content = await content_of(env, await ready(env))
        assert content.spec.source_volume_mode == "Block"
        await request_copy(env)
        await env.said("ProvisioningFailed", "copy")
        assert len(env.driver.requests_of("CreateVolume")) == 1
        leave = {"snapshot.storage.kubernetes.io/allow-volume-mode-change": "true"}
        patch = {"metadata": {"annotations": leave}}
        await env.client.patch(VolumeSnapshotContent, content.name, merge=patch)
        await env.until_claim(lambda c: c.status.phase == "Bound", "copy")


@both
async def test_a_snapshot_deleted_during_a_restore_waits_for_the_claim_to_be_bound() -> None:
    async with snapshotting() as env:
        await env.bound()
        await take(env)
        await ready(env)
        env.driver.script("CreateVolume", hold := Hold())
        await request_copy(env)
        await hold.reached_event.wait()
        await drop(env)
        reported = await env.said("SnapshotDeletePending", "snap")
        assert reported == "Snapshot is being used to restore a PVC"
        await env.rest(5)
        assert env.driver.requests_of("DeleteSnapshot") == []
        hold.release()
        await env.until_claim(lambda c: c.status.phase == "Bound", "copy")
        await gone(env)
        assert env.driver.snapshots == {}


@pytest.mark.virtual
async def test_a_claim_is_not_held_for_a_snapshot_that_was_taken_away_by_force() -> None:
    async with snapshotting() as env:
        env.driver.script("CreateSnapshot", hold := Hold())
        await env.bound()
        await take(env)
        await hold.reached_event.wait()
        assert snapshots.CLAIM_AS_SOURCE in (await env.claim()).metadata.finalizers
        await drop(env)
        stripped: dict[str, Any] = {"metadata": {"finalizers": []}}
        await env.client.patch(VolumeSnapshot, "snap", "default", merge=stripped)
        await gone(env)
        await env.until_claim(lambda c: snapshots.CLAIM_AS_SOURCE not in c.metadata.finalizers)


@pytest.mark.virtual
async def test_a_claim_that_is_to_go_is_freed_of_what_an_earlier_life_left_on_it() -> None:
    async with snapshotting() as env:
        await env.bound()
        held = {"metadata": {"finalizers": [snapshots.CLAIM_AS_SOURCE]}}
        await env.client.patch(PersistentVolumeClaim, "data", "default", strategic=held)
        await env.client.delete(PersistentVolumeClaim, "data", "default")
        await env.gone(PersistentVolumeClaim, "data", "default")
