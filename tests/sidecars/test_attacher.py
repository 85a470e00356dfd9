"""The attacher on the real API server, with a scripted driver: what the objects look like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.loops.inprocess import InProcessEnv, running, until, world
from tests.support import scripted
from tests.support.scripted import NAME, Fail, Hold, Lose, ScriptedDriver
from volplane import sdk
from volplane.api import names
from volplane.api.annotations import ATTACHMENT_NODE_ID_ANNOTATION
from volplane.api.coordination import Lease
from volplane.api.core import (
    CSIPersistentVolumeSource,
    PersistentVolume,
    PersistentVolumeSpec,
    Secret,
    SecretReference,
)
from volplane.api.errors import Forbidden
from volplane.api.meta import ObjectMeta
from volplane.api.storage import (
    CSINode,
    CSINodeDriver,
    CSINodeSpec,
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
)
from volplane.csi import v1
from volplane.csi.client import CsiChannel
from volplane.csi.outcome import Code
from volplane.sidecars.attacher import service as attacher
from volplane.sidecars.attacher.settings import AttacherOptions

FINALIZER = "external-attacher/test-csi-example-com"
VA = names.attachment_name("vol-1", NAME, "worker-1")


@asynccontextmanager
async def attaching(driver: ScriptedDriver, **settings: Any) -> AsyncIterator[InProcessEnv]:
    """A server, a registered node, a volume, and the attacher in virtual time."""
    async with world() as w:
        await create_objects(w)
        caller = sdk.Local(driver, component="csi-attacher")
        async with running(attacher.run(w.role("csi-attacher"), AttacherOptions(**settings), caller=caller)):
            await asyncio.sleep(1)
            yield w
        await caller.close()


async def create_objects(w: InProcessEnv, **csi: Any) -> None:
    await register(w, "worker-1", "i-1")
    await w.client.create(volume("pv1", "vol-1", **csi))


def volume(name: str, handle: str, **csi: Any) -> PersistentVolume:
    source = CSIPersistentVolumeSource(driver=NAME, volume_handle=handle, **csi)
    spec = PersistentVolumeSpec(
        capacity={"storage": "1Gi"},
        access_modes=("ReadWriteOnce",),
        persistent_volume_reclaim_policy="Retain",
        csi=source,
    )
    return PersistentVolume(metadata=ObjectMeta(name=name), spec=spec)


async def register(w: InProcessEnv, node: str, node_id: str) -> None:
    drivers = (CSINodeDriver(name=NAME, node_id=node_id),)
    await w.client.create(CSINode(metadata=ObjectMeta(name=node), spec=CSINodeSpec(drivers=drivers)))


async def attach(
    w: InProcessEnv, pv: str = "pv1", name: str = VA, node: str = "worker-1", driver: str = NAME
) -> None:
    source = VolumeAttachmentSource(persistent_volume_name=pv)
    spec = VolumeAttachmentSpec(attacher=driver, source=source, node_name=node)
    await w.client.create(VolumeAttachment(metadata=ObjectMeta(name=name), spec=spec))


async def get(w: InProcessEnv, name: str = VA) -> VolumeAttachment:
    return await w.client.get(VolumeAttachment, name)


@pytest.mark.virtual
async def test_an_attachment_is_published_and_says_so() -> None:
    driver = scripted.driver("attach", "readonly")
    async with attaching(driver) as w:
        await attach(w)
        await asyncio.sleep(1)
        va = await get(w)
        assert va.status.attached
        assert va.status.attachment_metadata == {"devicePath": "/dev/xvdba"}
        assert va.metadata.finalizers == (FINALIZER,)
        assert va.metadata.annotations[ATTACHMENT_NODE_ID_ANNOTATION] == "i-1"
        pv = await w.client.get(PersistentVolume, "pv1")
        assert FINALIZER in pv.metadata.finalizers
        (request,) = driver.requests_of("ControllerPublishVolume")
        assert (request.volume_id, request.node_id, request.readonly) == ("vol-1", "i-1", False)
        mode = request.volume_capability.access_mode
        assert mode.mode == mode.SINGLE_NODE_WRITER
        assert request.volume_capability.HasField("mount")


@pytest.mark.virtual
async def test_deleting_it_unpublishes_and_lets_it_go() -> None:
    driver = scripted.driver("attach", "readonly")
    async with attaching(driver) as w:
        await attach(w)
        await asyncio.sleep(1)
        await w.client.delete(VolumeAttachment, VA)
        await asyncio.sleep(1)
        assert await w.client.find(VolumeAttachment, VA) is None
        (request,) = driver.requests_of("ControllerUnpublishVolume")
        assert (request.volume_id, request.node_id) == ("vol-1", "i-1")
        assert driver.publications["vol-1"] == set()


@pytest.mark.virtual
async def test_errors_are_told_and_success_clears_them() -> None:
    driver = scripted.driver("attach", "readonly")
    driver.script("ControllerPublishVolume", *[Fail(Code.DEADLINE_EXCEEDED, "too slow")] * 3)
    async with attaching(driver) as w:
        await attach(w)
        await asyncio.sleep(0.5)
        va = await get(w)
        assert not va.status.attached
        assert va.metadata.finalizers == (FINALIZER,)
        assert va.status.attach_error is not None
        assert va.status.attach_error.message == "rpc error: code = DeadlineExceeded desc = too slow"
        assert va.status.attach_error.error_code is None
        await asyncio.sleep(60)
        va = await get(w)
        assert va.status.attached
        assert va.status.attach_error is None
    assert len(driver.requests_of("ControllerPublishVolume")) == 4


@pytest.mark.virtual
async def test_the_pauses_between_tries_double() -> None:
    driver = scripted.driver("attach", "readonly")
    driver.script("ControllerPublishVolume", *[Fail(Code.INTERNAL)] * 100)
    async with attaching(driver, retry_interval_start=1.0, retry_interval_max=8.0) as w:
        await attach(w)
        counts = []
        for seconds in (0.5, 1, 2, 4, 8, 8):
            await asyncio.sleep(seconds)
            counts.append(len(driver.requests_of("ControllerPublishVolume")))
        assert counts == [1, 2, 3, 4, 5, 6]


@pytest.mark.virtual
async def test_the_error_code_is_told_where_the_gate_is_on() -> None:
    driver = scripted.driver("attach", "readonly")
    driver.script("ControllerPublishVolume", Fail(Code.RESOURCE_EXHAUSTED))
    async with attaching(driver, feature_gates={"MutableCSINodeAllocatableCount": True}) as w:
        await attach(w)
        await asyncio.sleep(0.5)
        error = (await get(w)).status.attach_error
        assert error is not None
        assert error.error_code == 8


@pytest.mark.virtual
async def test_an_error_of_any_length_is_told() -> None:
    driver = scripted.driver("attach", "readonly")
    driver.script("ControllerPublishVolume", Fail(Code.INTERNAL, "é" * 2000))
    async with attaching(driver) as w:
        await attach(w)
        await asyncio.sleep(0.5)
        error = (await get(w)).status.attach_error
        assert error is not None
        assert len(error.message.encode()) <= 1024


@pytest.mark.virtual
async def test_an_attachment_deleted_while_its_publish_is_under_way_is_unpublished_afterwards() -> None:
    driver = scripted.driver("attach", "readonly")
    driver.script("ControllerPublishVolume", hold := Hold())
    async with attaching(driver) as w:
        await attach(w)
        await asyncio.sleep(1)
        await w.client.delete(VolumeAttachment, VA)
        await asyncio.sleep(1)
        assert driver.requests_of("ControllerUnpublishVolume") == []
        hold.release()
        await asyncio.sleep(1)
        assert await w.client.find(VolumeAttachment, VA) is None
        assert driver.publications["vol-1"] == set()


@pytest.mark.virtual
async def test_a_lost_reply_is_asked_for_again() -> None:
    driver = scripted.driver("attach", "readonly")
    driver.script("ControllerPublishVolume", Lose())
    driver.script("ControllerUnpublishVolume", Lose())
    async with attaching(driver) as w:
        await attach(w)
        await asyncio.sleep(10)
        assert (await get(w)).status.attached
        await w.client.delete(VolumeAttachment, VA)
        await asyncio.sleep(0.5)
        error = (await get(w)).status.detach_error
        assert error is not None
        assert "the reply was lost" in error.message
        await asyncio.sleep(10)
        assert await w.client.find(VolumeAttachment, VA) is None
    assert driver.violations == 0


@pytest.mark.virtual
async def test_a_driver_gone_from_the_node_fails_attaching_but_not_detaching() -> None:
    driver = scripted.driver("attach", "readonly")
    async with attaching(driver) as w:
        await attach(w)
        await asyncio.sleep(1)
        await w.client.patch(CSINode, "worker-1", merge={"spec": {"drivers": []}})
        await w.client.create(volume("pv2", "vol-2"))
        await attach(w, "pv2", "csi-second")
        await asyncio.sleep(0.5)
        error = (await get(w, "csi-second")).status.attach_error
        assert error is not None
        assert error.message == f"CSINode worker-1 does not contain driver {NAME}"
        await w.client.delete(VolumeAttachment, VA)
        await asyncio.sleep(0.5)
        assert await w.client.find(VolumeAttachment, VA) is None


@pytest.mark.virtual
async def test_registration_wakes_what_waits_for_it() -> None:
    driver = scripted.driver("attach", "readonly")
    async with attaching(driver) as w:
        await attach(w, node="worker-2")
        await asyncio.sleep(100)  # deep in backoff
        await register(w, "worker-2", "i-2")
        await asyncio.sleep(0.1)
        assert (await get(w)).status.attached


@pytest.mark.virtual
async def test_without_node_and_annotation_a_detach_waits_with_the_reason() -> None:
    driver = scripted.driver("attach", "readonly")
    async with attaching(driver) as w:
        await attach(w)
        await asyncio.sleep(1)
        await w.client.patch(
            VolumeAttachment, VA, merge={"metadata": {"annotations": {ATTACHMENT_NODE_ID_ANNOTATION: None}}}
        )
        await w.client.delete(CSINode, "worker-1")
        await w.client.delete(VolumeAttachment, VA)
        await asyncio.sleep(0.5)
        va = await get(w)
        assert va.status.detach_error is not None
        assert "not found" in va.status.detach_error.message
        assert driver.requests_of("ControllerUnpublishVolume") == []


@pytest.mark.virtual
async def test_a_missing_secret_is_named_and_nothing_is_called() -> None:
    driver = scripted.driver("attach", "readonly")
    async with attaching(driver) as w:
        reference = SecretReference(name="keys", namespace="kube-system")
        await w.client.create(volume("pv2", "vol-2", controller_publish_secret_ref=reference))
        await attach(w, "pv2", "csi-2")
        await asyncio.sleep(0.5)
        error = (await get(w, "csi-2")).status.attach_error
        assert error is not None
        assert "kube-system/keys" in error.message
        assert driver.requests_of("ControllerPublishVolume") == []
        secret = Secret(metadata=ObjectMeta(name="keys", namespace="kube-system"), data={"key": b"hunter2"})
        await w.client.create(secret)
        await asyncio.sleep(10)
        assert (await get(w, "csi-2")).status.attached
        assert driver.requests_of("ControllerPublishVolume")[0].secrets == {"key": "hunter2"}


@pytest.mark.virtual
async def test_an_intent_that_the_server_refuses_is_told_and_nothing_is_called() -> None:
    driver = scripted.driver("attach")
    async with world() as w:
        await create_objects(w)
        client, caller = w.role("csi-attacher"), sdk.Local(driver, component="csi-attacher")
        patch = client.transport.patch

        async def without_the_right(type: Any, *rest: Any, **options: Any) -> Any:
            if type is PersistentVolume:
                raise Forbidden('persistentvolumes "pv1" is forbidden')
            return await patch(type, *rest, **options)

        client.transport.patch = without_the_right  # type: ignore[method-assign]
        async with running(attacher.run(client, AttacherOptions(), caller=caller)):
            await attach(w)
            await asyncio.sleep(1.5)
            error = (await get(w)).status.attach_error
            assert error is not None
            assert error.message.startswith("could not add PersistentVolume finalizer: ")
            assert driver.requests_of("ControllerPublishVolume") == []
            client.transport.patch = patch  # type: ignore[method-assign]
            await asyncio.sleep(10)
            assert (await get(w)).status.attached
        await caller.close()


@pytest.mark.virtual
@pytest.mark.parametrize(("features", "readonly"), [(("attach",), False), (("attach", "readonly"), True)])
async def test_read_only_is_asked_of_drivers_that_can(features: tuple[str, ...], readonly: bool) -> None:
    driver = scripted.driver(*features)
    async with attaching(driver) as w:
        await w.client.create(volume("pv2", "vol-2", read_only=True))
        await attach(w, "pv2", "csi-2")
        await asyncio.sleep(0.5)
        assert driver.requests_of("ControllerPublishVolume")[0].readonly is readonly


@pytest.mark.virtual
async def test_a_driver_that_does_not_attach_is_trusted() -> None:
    driver = scripted.driver()
    async with attaching(driver) as w:
        await attach(w)
        await asyncio.sleep(0.5)
        va = await get(w)
        assert va.status.attached
        assert va.metadata.finalizers == ()
        assert va.status.attachment_metadata == {}
        await w.client.delete(VolumeAttachment, VA)
        assert await w.client.find(VolumeAttachment, VA) is None


@pytest.mark.virtual
async def test_what_the_drivers_list_misses_is_published_again() -> None:
    driver = scripted.driver("attach", "list", "list-published")
    for handle in ("vol-1", "vol-2"):
        driver.volumes[handle] = v1.Volume(volume_id=handle)
    async with attaching(driver) as w:
        await w.client.create(volume("pv2", "vol-2"))
        await attach(w)
        await attach(w, "pv2", "csi-2")
        await asyncio.sleep(1)
        driver.publications["vol-1"].clear()  # detached without us
        await asyncio.sleep(61)
        assert driver.publications["vol-1"] == {"i-1"}
        requests = [r.volume_id for r in driver.requests_of("ControllerPublishVolume")]
        assert sorted(requests) == ["vol-1", "vol-1", "vol-2"]
        assert len(driver.requests_of("ListVolumes")) == 2  # two pages


@pytest.mark.virtual
async def test_a_volume_deleted_while_attached_stays_until_the_attachment_is_gone() -> None:
    driver = scripted.driver("attach", "readonly")
    async with attaching(driver) as w:
        await attach(w)
        await asyncio.sleep(0.5)
        await w.client.delete(PersistentVolume, "pv1")
        await asyncio.sleep(0.5)
        assert FINALIZER in (await w.client.get(PersistentVolume, "pv1")).metadata.finalizers
        await w.client.delete(VolumeAttachment, VA)
        await asyncio.sleep(0.5)
        left = await w.client.find(PersistentVolume, "pv1")
        assert left is None or FINALIZER not in left.metadata.finalizers
        assert driver.publications["vol-1"] == set()


@pytest.mark.virtual
async def test_another_drivers_attachment_is_not_touched() -> None:
    driver = scripted.driver("attach", "readonly")
    async with attaching(driver) as w:
        await attach(w, driver="other.example.com")
        await asyncio.sleep(5)
        va = await get(w)
        assert not va.status.attached
        assert va.metadata.finalizers == ()
        assert driver.calls == []


@pytest.mark.virtual
async def test_of_two_only_the_leader_calls_and_the_other_follows() -> None:
    driver = scripted.driver("attach", "readonly")
    async with world() as w:
        await create_objects(w)
        await w.client.create(volume("pv2", "vol-2"))
        settings = AttacherOptions(leader_election=True, leader_election_namespace="kube-system")
        callers = [sdk.Local(driver, component=name) for name in ("one", "two")]
        second = attacher.run(w.role("two"), settings, caller=callers[1], identity="two")

        async def later() -> None:
            await asyncio.sleep(1)
            await second

        async with running(later()):
            async with running(attacher.run(w.role("one"), settings, caller=callers[0], identity="one")):
                await attach(w)
                await asyncio.sleep(30)
                name = f"external-attacher-leader-{names.sanitize_driver(NAME)}"
                lease = await w.client.get(Lease, name, "kube-system")
                assert lease.spec.holder_identity == "one"
                assert len(driver.requests_of("ControllerPublishVolume")) == 1
            await attach(w, "pv2", "csi-2")
            await asyncio.sleep(5)
            assert (await get(w, "csi-2")).status.attached
        assert len(driver.requests_of("ControllerPublishVolume")) == 2
        for caller in callers:
            await caller.close()


async def test_a_restarted_attacher_finishes_what_the_first_began_over_a_real_socket() -> None:
    driver = scripted.driver("attach", "readonly")
    driver.script("ControllerPublishVolume", hold := Hold())
    settings = AttacherOptions(retry_interval_start=0.01)
    async with (
        world() as w,
        scripted.on_socket(driver) as socket,
        CsiChannel(socket.path, component="csi-attacher") as channel,
    ):
        await create_objects(w)
        async with running(attacher.run(w.role("csi-attacher"), settings, caller=channel)):
            await attach(w)

            async def is_called() -> bool:
                return bool(driver.requests_of("ControllerPublishVolume"))

            await until(is_called)
        hold.release()
        assert not (await get(w)).status.attached
        async with running(attacher.run(w.role("csi-attacher"), settings, caller=channel)):

            async def is_attached() -> bool:
                return (await get(w)).status.attached

            await until(is_attached)
            await w.client.delete(VolumeAttachment, VA)

            async def is_gone() -> bool:
                return await w.client.find(VolumeAttachment, VA) is None

            await until(is_gone)
    assert driver.publications["vol-1"] == set()
    assert driver.violations == 0
