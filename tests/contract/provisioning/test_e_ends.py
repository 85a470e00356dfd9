"""How snapshots end, and restores from them: contract provisioning E.4, and E's cases to test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.provisioning.scene import played
from tests.contract.provisioning.snapping import (
    adopt,
    content_of,
    drop,
    given,
    gone,
    ready,
    restore,
    snapshot_class,
    snapshotting,
    take,
    until_going,
    until_snapshot,
    wish,
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
    async with snapshotting() as stage:
        hold = Hold(then=Fail(Code.UNAVAILABLE))
        stage.driver.script("CreateSnapshot", Lose(Code.DEADLINE_EXCEEDED), hold)
        await stage.bound()
        made = await take(stage)
        name = snapshots.content_name(made)
        await stage.said("SnapshotCreationFailed", name)
        await drop(stage)
        content = await until_going(stage, name)
        assert content.metadata.annotations[snapshots.BEING_CREATED] == "yes"
        assert content.metadata.annotations[snapshots.BEING_DELETED] == "yes"
        assert len(stage.driver.snapshots) == 1
        hold.release()
        await gone(stage)
        await stage.gone(VolumeSnapshotContent, name)
        assert stage.driver.snapshots == {}
        assert len(stage.driver.requests_of("CreateSnapshot")) == 3
        assert len(stage.driver.requests_of("DeleteSnapshot")) == 1
        claim = await stage.claim()
        assert snapshots.CLAIM_AS_SOURCE not in claim.metadata.finalizers


@both
async def test_a_snapshot_deleted_before_the_sidecar_saw_it_goes_without_a_call() -> None:
    async with played("snapshots") as stage, stage.controllers(VolumeSnapshots):
        await snapshot_class(stage)
        await stage.bound()
        made = await take(stage)
        name = snapshots.content_name(made)
        await until_snapshot(stage, snapshots.bound_name)
        await drop(stage)
        await until_going(stage, name)
        async with stage.sidecar(snapshotter.run, snapshotter.SnapshotterOptions()):
            await gone(stage)
            await stage.gone(VolumeSnapshotContent, name)
        assert stage.driver.requests_of("CreateSnapshot") == []
        assert stage.driver.requests_of("DeleteSnapshot") == []


@both
async def test_the_source_claim_is_held_until_the_snapshot_is_ready() -> None:
    async with snapshotting() as stage:
        stage.driver.script("CreateSnapshot", hold := Hold())
        await stage.bound()
        await take(stage)
        await hold.reached_event.wait()
        await stage.client.delete(PersistentVolumeClaim, "data", "default")
        await stage.rest(30)
        assert snapshots.CLAIM_AS_SOURCE in (await stage.claim()).metadata.finalizers
        assert stage.driver.requests_of("DeleteVolume") == []
        hold.release()
        await ready(stage)
        await stage.gone(PersistentVolumeClaim, "data", "default")


@pytest.mark.virtual
async def test_a_claim_that_is_going_gives_no_snapshot() -> None:
    async with snapshotting() as stage:
        await stage.bound()
        held = {"metadata": {"finalizers": ["example.com/hold"]}}
        await stage.client.patch(PersistentVolumeClaim, "data", "default", strategic=held)
        await stage.client.delete(PersistentVolumeClaim, "data", "default")
        await take(stage)
        reported = await stage.said("SnapshotContentCreationFailed", "snap")
        assert reported.endswith("cannot add finalizer on claim data because it is being deleted")
        assert stage.driver.requests_of("CreateSnapshot") == []


@both
async def test_retain_keeps_the_content_and_it_can_be_imported_again() -> None:
    async with snapshotting("list-snapshots", policy="Retain") as stage:
        await stage.bound()
        made = await take(stage)
        snapshot = await ready(stage)
        assert snapshot.metadata.finalizers == (snapshots.AS_SOURCE,)
        await drop(stage)
        await gone(stage)
        content = await stage.client.get(VolumeSnapshotContent, snapshots.content_name(made))
        assert content.metadata.annotations[snapshots.BEING_DELETED] == "yes"
        assert not content.is_deleting
        assert content.status is not None
        handle = content.status.snapshot_handle
        assert handle is not None
        assert stage.driver.requests_of("DeleteSnapshot") == []
        await given(stage, handle, name="import", to="again")
        await adopt(stage, "again", "import")
        again = await ready(stage, "again")
        assert again.status is not None
        assert again.status.restore_size == "1Gi"
        # The kept content goes at its owner's word, and the snapshot behind it stays.
        await stage.client.delete(VolumeSnapshotContent, content.name)
        await stage.gone(VolumeSnapshotContent, content.name)
        assert len(stage.driver.snapshots) == 1


@both
async def test_a_content_deleted_while_its_snapshot_lives_stays() -> None:
    async with snapshotting() as stage:
        await stage.bound()
        await take(stage)
        name = snapshots.bound_name(await ready(stage))
        await stage.client.delete(VolumeSnapshotContent, name)
        await stage.rest(1200)
        assert (await stage.client.get(VolumeSnapshotContent, name)).is_deleting
        assert stage.driver.requests_of("DeleteSnapshot") == []
        await drop(stage)
        await gone(stage)
        assert stage.driver.snapshots == {}


@both
async def test_a_content_whose_snapshot_is_missing_is_never_deleted() -> None:
    async with snapshotting() as stage:
        await given(stage, "snap-known", uid="long-gone")
        await stage.rest(3600)
        content = await stage.client.get(VolumeSnapshotContent, "given")
        assert not content.is_deleting
        assert stage.driver.requests_of("DeleteSnapshot") == []


@pytest.mark.virtual
async def test_a_given_content_nobody_named_goes_with_its_policy() -> None:
    async with snapshotting() as stage:
        await given(stage, "snap-known")
        await asyncio.sleep(5)
        await stage.client.delete(VolumeSnapshotContent, "given")
        await stage.gone(VolumeSnapshotContent, "given")


@both
async def test_a_deletion_that_fails_is_told_and_repeated() -> None:
    async with snapshotting() as stage:
        await stage.bound()
        made = await take(stage)
        await ready(stage)
        stage.driver.script("DeleteSnapshot", Fail(Code.INTERNAL))
        await drop(stage)
        reported = await stage.said("SnapshotDeleteError", snapshots.content_name(made))
        assert reported == "Failed to delete snapshot"
        await gone(stage)
        assert len(stage.driver.requests_of("DeleteSnapshot")) == 2


async def test_a_snapshot_is_restored_into_a_new_claim() -> None:
    async with snapshotting() as stage:
        await stage.bound()
        await take(stage)
        content = await content_of(stage, await ready(stage))
        assert content.status is not None
        await stage.bound("copy", **{k: v for k, v in restore().items() if k == "dataSource"})
        request = stage.driver.requests_of("CreateVolume")[-1]
        assert request.volume_content_source.snapshot.snapshot_id == content.status.snapshot_handle


@both
async def test_a_restore_smaller_than_the_snapshot_is_refused() -> None:
    async with snapshotting() as stage:
        await stage.bound(size="2Gi")
        await take(stage)
        await ready(stage)
        await wish(stage, size="1Gi")
        await stage.said("ProvisioningFailed", "copy")
        assert len(stage.driver.requests_of("CreateVolume")) == 1
        await wish(stage, "fits", "2Gi")
        await stage.until_claim(lambda c: c.status.phase == "Bound", "fits")


@both
async def test_a_restore_of_a_snapshot_that_is_not_ready_is_tried_until_it_is() -> None:
    async with snapshotting() as stage:
        stage.driver.ready_after = 3
        stage.driver.script("CreateSnapshot", Delay(0), hold := Hold())
        await stage.bound()
        await take(stage)
        await hold.reached_event.wait()
        await wish(stage)
        await stage.said("ProvisioningFailed", "copy")
        hold.release()
        await stage.until_claim(lambda c: c.status.phase == "Bound", "copy")


@both
async def test_a_block_volumes_snapshot_becomes_no_file_system_without_leave() -> None:
    async with snapshotting() as stage:
        await stage.bound(volumeMode="Block")
        await take(stage)
        content = await content_of(stage, await ready(stage))
        assert content.spec.source_volume_mode == "Block"
        await wish(stage)
        await stage.said("ProvisioningFailed", "copy")
        assert len(stage.driver.requests_of("CreateVolume")) == 1
        leave = {"snapshot.storage.kubernetes.io/allow-volume-mode-change": "true"}
        patch = {"metadata": {"annotations": leave}}
        await stage.client.patch(VolumeSnapshotContent, content.name, merge=patch)
        await stage.until_claim(lambda c: c.status.phase == "Bound", "copy")


@both
async def test_a_snapshot_deleted_during_a_restore_waits_for_the_claim_to_be_bound() -> None:
    async with snapshotting() as stage:
        await stage.bound()
        await take(stage)
        await ready(stage)
        stage.driver.script("CreateVolume", hold := Hold())
        await wish(stage)
        await hold.reached_event.wait()
        await drop(stage)
        reported = await stage.said("SnapshotDeletePending", "snap")
        assert reported == "Snapshot is being used to restore a PVC"
        await stage.rest(5)
        assert stage.driver.requests_of("DeleteSnapshot") == []
        hold.release()
        await stage.until_claim(lambda c: c.status.phase == "Bound", "copy")
        await gone(stage)
        assert stage.driver.snapshots == {}


@pytest.mark.virtual
async def test_a_claim_is_not_held_for_a_snapshot_that_was_taken_away_by_force() -> None:
    async with snapshotting() as stage:
        stage.driver.script("CreateSnapshot", hold := Hold())
        await stage.bound()
        await take(stage)
        await hold.reached_event.wait()
        assert snapshots.CLAIM_AS_SOURCE in (await stage.claim()).metadata.finalizers
        await drop(stage)
        stripped: dict[str, Any] = {"metadata": {"finalizers": []}}
        await stage.client.patch(VolumeSnapshot, "snap", "default", merge=stripped)
        await gone(stage)
        await stage.until_claim(lambda c: snapshots.CLAIM_AS_SOURCE not in c.metadata.finalizers)


@pytest.mark.virtual
async def test_a_claim_that_is_to_go_is_freed_of_what_an_earlier_life_left_on_it() -> None:
    async with snapshotting() as stage:
        await stage.bound()
        held = {"metadata": {"finalizers": [snapshots.CLAIM_AS_SOURCE]}}
        await stage.client.patch(PersistentVolumeClaim, "data", "default", strategic=held)
        await stage.client.delete(PersistentVolumeClaim, "data", "default")
        await stage.gone(PersistentVolumeClaim, "data", "default")
