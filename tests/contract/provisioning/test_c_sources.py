"""Contract provisioning C.7: volumes that are copies of a snapshot or of another claim's volume."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.provisioning.claims_env import PATIENCE, ClaimsEnv, claims_env, provisioning
from tests.loops.inprocess import until
from tests.support import scripted
from tests.support.scripted import Fail, Hold
from tests.support.snapshots import definitions
from tests.support.timing import is_virtual
from volplane.api import codec
from volplane.api.core import PersistentVolumeClaim
from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotContent
from volplane.csi.outcome import Code

pytestmark = pytest.mark.both

RESTORING = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"
CLONING = "provisioner.storage.kubernetes.io/cloning-protection"
FROM_SNAPSHOT = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "before"}
FROM_CLAIM = {"kind": "PersistentVolumeClaim", "name": "data"}


async def defined(s: ClaimsEnv) -> None:
    for definition in definitions():
        await s.client.create(definition)


async def snapshot(
    s: ClaimsEnv, driver: Any, *, ready: bool = True, mode: str = "Filesystem"
) -> VolumeSnapshot:
    """A snapshot of the volume of `data`, as the snapshot controllers leave it."""
    _, held = await s.bound()
    assert held.spec.csi is not None
    made = await s.client.create(
        codec.convert(
            VolumeSnapshot,
            {
                "metadata": {"name": "before", "namespace": "default"},
                "spec": {"source": {"persistentVolumeClaimName": "data"}},
            },
        )
    )
    ref = {"kind": "VolumeSnapshot", "namespace": "default", "name": "before", "uid": made.uid}
    spec = {
        "volumeSnapshotRef": ref,
        "deletionPolicy": "Delete",
        "driver": scripted.NAME,
        "source": {"volumeHandle": held.spec.csi.volume_handle},
        "sourceVolumeMode": mode,
    }
    content = {"metadata": {"name": "content"}, "spec": spec}
    await s.client.create(codec.convert(VolumeSnapshotContent, content))
    driver.snapshots["before"] = driver._create_snapshot("before", held.spec.csi.volume_handle)
    handle = driver.snapshots["before"].snapshot_id
    reported = {"status": {"snapshotHandle": handle, "readyToUse": ready, "restoreSize": 1 << 30}}
    await s.client.patch(VolumeSnapshotContent, "content", merge=reported, subresource="status")
    await bind(s, ready=ready)
    return made


async def bind(s: ClaimsEnv, *, ready: bool) -> None:
    reported = {"boundVolumeSnapshotContentName": "content", "readyToUse": ready, "restoreSize": "1Gi"}
    await s.edit(VolumeSnapshot, "before", {"status": reported}, status=True)


async def test_a_volume_is_restored_from_a_snapshot_that_is_held_meanwhile() -> None:
    driver = scripted.driver("snapshots")
    async with claims_env(driver) as s:
        await defined(s)
        await s.storage_class()
        await s.claim()
        await snapshot(s, driver)
        hold = Hold()
        driver.script("CreateVolume", hold)
        await s.claim("copy", dataSource=FROM_SNAPSHOT)
        await hold.reached_event.wait()
        held = await s.find(VolumeSnapshot, "before")
        assert RESTORING in held.metadata.finalizers
        request = driver.requests_of("CreateVolume")[-1]
        assert request.volume_content_source.snapshot.snapshot_id == "snap-before"
        hold.release()
        await s.bound("copy")

        async def let_go() -> bool:
            return RESTORING not in (await s.find(VolumeSnapshot, "before")).metadata.finalizers

        await until(let_go, PATIENCE)


async def test_a_snapshot_that_is_deleted_during_the_restore_stays_until_the_volume_is_there() -> None:
    driver = scripted.driver("snapshots")
    async with claims_env(driver) as s:
        await defined(s)
        await s.storage_class()
        await s.claim()
        await snapshot(s, driver)
        hold = Hold()
        driver.script("CreateVolume", *[Fail(Code.UNAVAILABLE)] * 3, hold)
        await s.claim("copy", dataSource=FROM_SNAPSHOT)
        await s.called("CreateVolume", 2)
        await s.delete(VolumeSnapshot, "before")
        await hold.reached_event.wait()
        assert (await s.find(VolumeSnapshot, "before")).is_deleting
        hold.release()
        await s.bound("copy")
        await s.gone(VolumeSnapshot, "before")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"resources": {"requests": {"storage": "512Mi"}}}, "less than the size 1073741824"),
        ({"volumeMode": "Block"}, "modifies the mode of the source volume from Filesystem to Block"),
    ],
    ids=["too small", "another mode"],
)
async def test_a_snapshot_that_does_not_fit_is_refused_with_the_reason(spec: Any, said: str) -> None:
    driver = scripted.driver("snapshots")
    async with claims_env(driver) as s:
        await defined(s)
        await s.storage_class()
        await s.claim()
        await snapshot(s, driver)
        await s.claim("copy", dataSource=FROM_SNAPSHOT, **spec)
        reported = await s.event("ProvisioningFailed", said)
        assert "error getting handle for DataSource Type VolumeSnapshot by Name before: " in reported.message
        assert len(driver.requests_of("CreateVolume")) == 1
        if "volumeMode" in spec:
            allowed = {"snapshot.storage.kubernetes.io/allow-volume-mode-change": "true"}
            await s.client.patch(
                VolumeSnapshotContent, "content", merge={"metadata": {"annotations": allowed}}
            )
            await s.bound("copy")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_snapshot_that_is_not_ready_is_waited_for_and_its_readiness_noticed(when: str) -> None:
    """Whether the kinds of snapshots were installed before the provisioner started or after."""
    driver = scripted.driver("snapshots")
    async with claims_env(driver, roles=("binder",)) as s:
        if when == "before":
            await defined(s)
        await s.storage_class()
        async with provisioning(s.around.role("csi-provisioner"), driver):
            await s.claim()
            if when == "after":
                await s.bound()  # the provisioner is at work
                await defined(s)
            await snapshot(s, driver, ready=False)
            await s.claim("copy", dataSource=FROM_SNAPSHOT)
            await s.event("ProvisioningFailed", "not ready to use")
            await s.rest(1000)  # the pauses between two tries are minutes by now
            await bind(s, ready=True)
            await s.bound("copy")


async def test_a_claim_older_than_the_kinds_of_snapshots_begins_when_its_snapshot_is_there() -> None:
    driver = scripted.driver("snapshots")
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim()
        await s.claim("copy", dataSource=FROM_SNAPSHOT)
        await s.event("ProvisioningFailed", "before", about="copy")
        await s.rest(1000)  # the pauses between two tries are minutes by now
        await defined(s)
        await snapshot(s, driver)
        await s.bound("copy")


async def test_a_driver_without_snapshots_is_not_asked_to_restore_one() -> None:
    driver = scripted.driver()
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim("copy", dataSource=FROM_SNAPSHOT)
        await s.event("ProvisioningFailed", "CREATE_DELETE_SNAPSHOT is missing")
        assert driver.calls == []


async def test_an_answer_without_the_source_is_no_copy() -> None:
    driver = scripted.driver("clone")
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim()
        await s.bound()
        driver.forgets_source = True
        await s.claim("copy", dataSource=FROM_CLAIM)
        await s.event("ProvisioningFailed", "volume content source missing")
        await s.called("DeleteVolume")
        assert len(driver.volumes) == 1
        driver.forgets_source = False
        await s.bound("copy")


async def test_a_claim_is_cloned_and_protected_until_the_clone_is_bound() -> None:
    driver = scripted.driver("clone")
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim()
        _, held = await s.bound()
        hold = Hold()
        driver.script("CreateVolume", *[Fail(Code.UNAVAILABLE)] * 3, hold)
        await s.claim("copy", size="2Gi", dataSource=FROM_CLAIM)
        await s.called("CreateVolume", 2)
        assert held.spec.csi is not None
        request = driver.requests_of("CreateVolume")[-1]
        assert request.volume_content_source.volume.volume_id == held.spec.csi.volume_handle
        assert CLONING in (await s.find(PersistentVolumeClaim, "data")).metadata.finalizers
        await s.delete(PersistentVolumeClaim, "data")
        await s.rest(2)
        await hold.reached_event.wait()
        assert (await s.find(PersistentVolumeClaim, "data")).is_deleting
        hold.release()
        await s.bound("copy")
        await s.gone(PersistentVolumeClaim, "data")


@pytest.mark.parametrize(
    ("origin", "copy", "said"),
    [
        ({"size": "2Gi"}, {}, "less than the size 2147483648 of the cloned claim"),
        ({}, {"volumeMode": "Block"}, "has mode Filesystem, not Block"),
    ],
    ids=["too small", "another mode"],
)
async def test_a_claim_that_cannot_be_cloned_is_refused_with_the_reason(
    origin: Any, copy: Any, said: str
) -> None:
    driver = scripted.driver("clone")
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim(**origin)
        await s.bound()
        await s.claim("copy", dataSource=FROM_CLAIM, **copy)
        reported = await s.event("ProvisioningFailed", said)
        assert (
            "error getting handle for DataSource Type PersistentVolumeClaim by Name data: "
            in reported.message
        )
        assert len(driver.requests_of("CreateVolume")) == 1


async def test_a_clone_of_a_claim_that_is_bound_later_begins_at_once() -> None:
    hold = Hold()
    driver = scripted.driver("clone")
    driver.script("CreateVolume", hold)
    async with claims_env(driver, timeout=10_000.0) as s:
        await s.storage_class()
        await s.claim()
        await hold.reached_event.wait()
        await s.claim("copy", dataSource=FROM_CLAIM)
        await s.event("ProvisioningFailed", "claim data is Pending, not Bound")
        await s.rest(1000)
        hold.release()
        await s.bound("copy")


async def test_a_source_that_only_a_populator_knows_is_left_to_it() -> None:
    driver = scripted.driver("clone", "snapshots")
    async with claims_env(driver) as s:
        await s.storage_class()
        source = {"apiGroup": "example.com", "kind": "Backup", "name": "b"}
        await s.claim("copy", dataSourceRef=source)
        reported = await s.event("Provisioning")
        assert reported.message == "Assuming an external populator will provision the volume"
        await s.rest(600)
        assert driver.calls == []


async def test_a_snapshot_held_for_nobody_is_let_go_by_the_sweep() -> None:
    driver = scripted.driver("snapshots")
    often: dict[str, Any] = {} if is_virtual() else {"snapshot_orphan_sweep_interval": 0.1}
    async with claims_env(driver, **often) as s:
        await defined(s)
        orphan = {
            "metadata": {"name": "before", "namespace": "default", "finalizers": [RESTORING]},
            "spec": {"source": {"persistentVolumeClaimName": "data"}},
        }
        await s.client.create(codec.convert(VolumeSnapshot, orphan))

        async def let_go() -> bool:
            return not (await s.find(VolumeSnapshot, "before")).metadata.finalizers

        if is_virtual():
            await asyncio.sleep(301)
        await until(let_go, PATIENCE)
