"""At every instant between two effects a sidecar stops; the next one finishes the work and nothing is left
over.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.loops.inprocess import InProcessEnv, running, world
from tests.sidecars import test_attacher as attaching
from tests.sidecars import test_provisioner as provisioning
from tests.sidecars.stop_points import StoppingCaller, StoppingTransport, StopPoint
from tests.support import scripted
from volplane import sdk
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.finalizers import PROVISIONING_INTENT_FINALIZER
from volplane.api.storage import VolumeAttachment
from volplane.client.client import Client
from volplane.sidecars import provisioner
from volplane.sidecars.attacher import service as attacher

pytestmark = pytest.mark.virtual

WHEN = pytest.mark.parametrize("when", ["before", "after"])


def stopping_client(w: InProcessEnv, stop_point: StopPoint) -> Client:
    return Client(
        StoppingTransport(w.core.in_process_transport(), stop_point), caches=w.caches, component="stopping"
    )


async def wait_for_stop(stop_point: StopPoint, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        await stop_point.stopped.wait()


# --- provisioner: note, CreateVolume, save, settle

MAKING = [
    "patch PersistentVolumeClaim",
    "CreateVolume",
    "create PersistentVolume",
    "patch PersistentVolumeClaim",
]


async def test_these_are_the_effects_of_making_a_volume() -> None:
    async with world() as w:
        stop_point, driver = StopPoint(99, "after"), sdk.Local(scripted.driver("attach", "readonly"))
        await w.client.create(provisioning.storage_class())
        async with running(
            provisioner.run(
                stopping_client(w, stop_point),
                provisioner.ProvisionerOptions(),
                caller=StoppingCaller(driver, stop_point),
            )
        ):
            await provisioning.claim(w)
            await asyncio.sleep(5)
        assert stop_point.effects == MAKING


@WHEN
@pytest.mark.parametrize("at", range(1, len(MAKING) + 1))
@pytest.mark.parametrize("deleted", [False, True])
async def test_a_stop_while_a_volume_is_made_leaks_nothing(at: int, when: str, deleted: bool) -> None:
    async with world() as w:
        stop_point, driver = StopPoint(at, when), scripted.driver("attach", "readonly")
        caller = sdk.Local(driver)
        await w.client.create(provisioning.storage_class())
        async with running(
            provisioner.run(
                stopping_client(w, stop_point),
                provisioner.ProvisionerOptions(),
                caller=StoppingCaller(caller, stop_point),
            )
        ):
            made = await provisioning.claim(w)
            await wait_for_stop(stop_point)
        if deleted:
            await provisioning.drop_claim(w)
        async with running(provisioner.run(w.role("next"), provisioner.ProvisionerOptions(), caller=caller)):
            await asyncio.sleep(10)
            found = [v.name for v in await provisioning.volumes(w)]
            if not deleted:
                assert found == [f"pvc-{made.uid}"]
                assert PROVISIONING_INTENT_FINALIZER not in (await provisioning.get(w)).metadata.finalizers
            else:
                assert await w.client.find(PersistentVolumeClaim, "data", "default") is None
                for name in found:
                    await provisioning.release(w, name)
                await asyncio.sleep(10)
                assert await provisioning.volumes(w) == []
            assert len(driver.volumes) == (0 if deleted else 1)
        await caller.close()


DELETING = ["DeleteVolume", "delete PersistentVolume", "patch PersistentVolume"]


@WHEN
@pytest.mark.parametrize("at", range(1, len(DELETING) + 1))
async def test_a_stop_while_a_volume_is_deleted_is_made_good(at: int, when: str) -> None:
    async with world() as w:
        driver = scripted.driver("attach", "readonly")
        caller = sdk.Local(driver)
        await w.client.create(provisioning.storage_class())
        async with running(provisioner.run(w.role("first"), provisioner.ProvisionerOptions(), caller=caller)):
            await provisioning.claim(w)
            await asyncio.sleep(5)
        (volume,) = await provisioning.volumes(w)
        await provisioning.drop_claim(w)
        stop_point = StopPoint(at, when)
        async with running(
            provisioner.run(
                stopping_client(w, stop_point),
                provisioner.ProvisionerOptions(),
                caller=StoppingCaller(caller, stop_point),
            )
        ):
            await asyncio.sleep(1)
            await provisioning.release(w, volume.name)
            await wait_for_stop(stop_point)
            assert stop_point.effects == DELETING[:at]
        async with running(provisioner.run(w.role("next"), provisioner.ProvisionerOptions(), caller=caller)):
            await asyncio.sleep(10)
        assert await w.client.find(PersistentVolume, volume.name) is None
        assert driver.volumes == {}
        await caller.close()


# --- attacher: hold, note, publish, say so; unpublish, let go

ATTACHING = [
    "patch PersistentVolume",
    "patch VolumeAttachment",
    "ControllerPublishVolume",
    "patch VolumeAttachment",
]
DETACHING = ["ControllerUnpublishVolume", "patch VolumeAttachment"]


@WHEN
@pytest.mark.parametrize("at", range(1, len(ATTACHING) + 1))
@pytest.mark.parametrize("deleted", [False, True])
async def test_a_stop_while_attaching_is_made_good(at: int, when: str, deleted: bool) -> None:
    async with world() as w:
        stop_point, driver = StopPoint(at, when), scripted.driver("attach", "readonly")
        caller = sdk.Local(driver)
        await attaching.create_objects(w)
        async with running(
            attacher.run(
                stopping_client(w, stop_point),
                attacher.AttacherOptions(),
                caller=StoppingCaller(caller, stop_point),
            )
        ):
            await attaching.attach(w)
            await wait_for_stop(stop_point)
            assert stop_point.effects == ATTACHING[:at]
        if deleted:
            await w.client.delete(VolumeAttachment, attaching.VA)
        async with running(attacher.run(w.role("next"), attacher.AttacherOptions(), caller=caller)):
            await asyncio.sleep(10)
        if deleted:
            assert await w.client.find(VolumeAttachment, attaching.VA) is None
            assert not driver.publications["vol-1"]
        else:
            assert (await attaching.get(w)).status.attached
            assert driver.publications["vol-1"] == {"i-1"}
        assert driver.violations == 0
        await caller.close()


@WHEN
@pytest.mark.parametrize("at", range(1, len(DETACHING) + 1))
async def test_a_stop_while_detaching_is_made_good(at: int, when: str) -> None:
    async with world() as w:
        driver = scripted.driver("attach", "readonly")
        caller = sdk.Local(driver)
        await attaching.create_objects(w)
        async with running(attacher.run(w.role("first"), attacher.AttacherOptions(), caller=caller)):
            await attaching.attach(w)
            await asyncio.sleep(5)
        stop_point = StopPoint(at, when)
        async with running(
            attacher.run(
                stopping_client(w, stop_point),
                attacher.AttacherOptions(),
                caller=StoppingCaller(caller, stop_point),
            )
        ):
            await asyncio.sleep(1)
            await w.client.delete(VolumeAttachment, attaching.VA)
            await wait_for_stop(stop_point)
            assert stop_point.effects == DETACHING[:at]
        async with running(attacher.run(w.role("next"), attacher.AttacherOptions(), caller=caller)):
            await asyncio.sleep(10)
        assert await w.client.find(VolumeAttachment, attaching.VA) is None
        assert not driver.publications["vol-1"]
        await caller.close()
