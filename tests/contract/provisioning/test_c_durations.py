"""Rules with a long duration, once in real time on a real socket, the duration set by its flag."""

from __future__ import annotations

from tests.contract.provisioning.stage import stage
from tests.loops.inprocess import until
from tests.support import scripted
from tests.support.scripted import Fail
from tests.support.snapshots import definitions
from volplane.api import codec
from volplane.api.core import PersistentVolumeClaim
from volplane.api.snapshot import VolumeSnapshot
from volplane.api.storage import CSIStorageCapacity
from volplane.csi.outcome import Code

RESTORING = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"


async def test_the_pause_after_an_error_grows_to_its_maximum() -> None:
    driver = scripted.driver()
    driver.always("CreateVolume", Fail(Code.INTERNAL))
    async with stage(driver, retry_interval_start=0.01, retry_interval_max=0.05) as s:
        await s.storage_class()
        await s.claim()
        await s.called("CreateVolume", 8)  # with the default pauses this would take two minutes
        driver.always("CreateVolume", None)
        await s.bound()


async def test_capacities_are_asked_for_again_and_again() -> None:
    driver = scripted.driver("capacity", "topology")
    flags = {"enable_capacity": True, "capacity_ownerref_level": -1, "capacity_poll_interval": 0.1}
    async with stage(driver, namespace="kube-system", **flags) as s:
        await s.storage_class(mode="WaitForFirstConsumer")
        await s.node("n1", "a")
        await s.called("GetCapacity", 2)
        driver.available = 1 << 30

        async def told() -> bool:
            return [c.capacity for c in await s.client.list(CSIStorageCapacity)] == ["1Gi"]

        await until(told, 60)


async def test_snapshots_that_are_held_for_nobody_are_swept() -> None:
    driver = scripted.driver("snapshots")
    async with stage(driver, snapshot_orphan_sweep_interval=0.1) as s:
        for definition in definitions():
            await s.client.create(definition)
        orphan = {
            "metadata": {"name": "before", "namespace": "default", "finalizers": [RESTORING]},
            "spec": {"source": {"persistentVolumeClaimName": "data"}},
        }
        await s.client.create(codec.convert(VolumeSnapshot, orphan))

        async def let_go() -> bool:
            return not (await s.find(VolumeSnapshot, "before")).metadata.finalizers

        await until(let_go, 60)


async def test_the_binder_looks_at_everything_each_period() -> None:
    """An event that is told in every round: its count grows."""
    async with stage(scripted.driver(), roles=("binder",), binder={"sync_period": 0.1}) as s:
        await s.claim(cls="")

        async def rounds() -> bool:
            told = await s.events("FailedBinding")
            return bool(told) and told[0].count >= 3

        await until(rounds, 60)
        assert (await s.find(PersistentVolumeClaim, "data")).status.phase == "Pending"
