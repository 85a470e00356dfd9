"""The provisioner on the real API server, with a scripted driver: no disk leaks, whatever happens on the
way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.loops.inprocess import InProcessEnv, running, until, world
from tests.support import scripted
from tests.support.scripted import NAME, ZONE, Fail, Hold, Lose, ScriptedDriver
from volplane import sdk
from volplane.api.annotations import SELECTED_NODE_ANNOTATION, STORAGE_PROVISIONER_ANNOTATION
from volplane.api.core import (
    Event,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    Secret,
    VolumeResourceRequirements,
)
from volplane.api.errors import Unavailable
from volplane.api.finalizers import EXTERNAL_PROVISIONER_FINALIZER, PROVISIONING_INTENT_FINALIZER
from volplane.api.meta import ObjectMeta
from volplane.api.storage import (
    CSINode,
    CSINodeDriver,
    CSINodeSpec,
    StorageClass,
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
)
from volplane.client.client import Client
from volplane.csi.client import CsiChannel
from volplane.csi.outcome import Code
from volplane.sidecars import provisioner
from volplane.sidecars.provisioner import ProvisionerOptions
from volplane.sidecars.provisioner.controller.claims import BIND_GRACE

PROTECTION = "kubernetes.io/pvc-protection"


@asynccontextmanager
async def provisioning(driver: ScriptedDriver, **settings: Any) -> AsyncIterator[InProcessEnv]:
    """A server with a class, and the provisioner in virtual time."""
    async with world() as w:
        await w.client.create(storage_class())
        async with provisioner_of(w, driver, **settings):
            yield w


@asynccontextmanager
async def provisioner_of(
    w: InProcessEnv, driver: ScriptedDriver | sdk.Local, client: Client | None = None, **settings: Any
) -> AsyncIterator[None]:
    """Given a caller instead of a driver, the driver outlives the provisioner."""
    caller = driver if isinstance(driver, sdk.Local) else sdk.Local(driver, component="csi-provisioner")
    role = client or w.role("csi-provisioner")
    async with running(provisioner.run(role, ProvisionerOptions(**settings), caller=caller, identity="me")):
        await asyncio.sleep(0.1)
        yield
    if caller is not driver:
        await caller.close()


def storage_class(name: str = "fast", mode: str = "Immediate", **parameters: str) -> StorageClass:
    return StorageClass(
        metadata=ObjectMeta(name=name),
        provisioner=NAME,
        volume_binding_mode=mode,
        reclaim_policy="Delete",
        parameters=parameters,
    )


async def claim(
    w: InProcessEnv, name: str = "data", node: str = "", storage_class: str = "fast"
) -> PersistentVolumeClaim:
    notes = {STORAGE_PROVISIONER_ANNOTATION: NAME}
    if node:
        notes[SELECTED_NODE_ANNOTATION] = node
    spec = PersistentVolumeClaimSpec(
        access_modes=("ReadWriteOnce",),
        resources=VolumeResourceRequirements(requests={"storage": "1Gi"}),
        storage_class_name=storage_class,
    )
    made = PersistentVolumeClaim(
        metadata=ObjectMeta(name=name, namespace="default", annotations=notes), spec=spec
    )
    return await w.client.create(made)


async def get(w: InProcessEnv, name: str = "data") -> PersistentVolumeClaim:
    return await w.client.get(PersistentVolumeClaim, name, "default")


async def volumes(w: InProcessEnv) -> list[PersistentVolume]:
    return await w.client.list(PersistentVolume)


async def reasons(w: InProcessEnv, name: str = "data") -> list[tuple[str, str, str]]:
    found = await w.client.list(Event, "default", fields=f"involvedObject.name={name}")
    return [(e.type, e.reason, e.message) for e in found]


async def drop_claim(w: InProcessEnv, name: str = "data") -> None:
    """Delete as a user does; the protection controller's part is done at once."""
    await w.client.delete(PersistentVolumeClaim, name, "default")
    removal = {"metadata": {"$deleteFromPrimitiveList/finalizers": [PROTECTION]}}
    await w.client.patch(PersistentVolumeClaim, name, "default", strategic=removal, missing_ok=True)


async def release(w: InProcessEnv, name: str) -> None:
    """The binder's part: the claim is gone."""
    await w.client.patch(
        PersistentVolume, name, merge={"status": {"phase": "Released"}}, subresource="status"
    )
    removal = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["kubernetes.io/pv-protection"]}}
    await w.client.patch(PersistentVolume, name, strategic=removal, missing_ok=True)


@pytest.mark.virtual
async def test_a_claim_gets_its_volume() -> None:
    driver = scripted.driver()
    async with provisioning(driver) as w:
        made = await claim(w)
        await asyncio.sleep(BIND_GRACE + 1)
        (volume,) = await volumes(w)
        assert volume.name == f"pvc-{made.uid}"
        assert volume.spec.csi is not None
        assert volume.spec.csi.volume_handle == f"vol-pvc-{made.uid}"
        assert volume.spec.claim_ref is not None
        assert volume.spec.claim_ref.uid == made.uid
        (request,) = driver.requests_of("CreateVolume")
        assert request.capacity_range.required_bytes == 1 << 30
        assert request.capacity_range.limit_bytes == 0
        assert len(request.volume_capabilities) == 1
        assert not request.HasField("accessibility_requirements")
        after = await get(w)
        assert PROVISIONING_INTENT_FINALIZER not in after.metadata.finalizers
        assert PROVISIONING_INTENT_FINALIZER not in after.metadata.annotations
        assert sorted(await reasons(w)) == [
            (
                "Normal",
                "Provisioning",
                'External provisioner is provisioning volume for claim "default/data"',
            ),
            ("Normal", "ProvisioningSucceeded", f"Successfully provisioned volume {volume.name}"),
        ]


@pytest.mark.virtual
async def test_while_the_call_is_under_way_the_claim_carries_the_order() -> None:
    driver = scripted.driver()
    driver.script("CreateVolume", hold := Hold())
    async with provisioning(driver) as w:
        await claim(w)
        await asyncio.sleep(1)
        during = await get(w)
        assert PROVISIONING_INTENT_FINALIZER in during.metadata.finalizers
        assert PROVISIONING_INTENT_FINALIZER in during.metadata.annotations
        hold.release()


@pytest.mark.virtual
async def test_a_claim_deleted_while_its_volume_is_made_is_kept_until_the_volume_is_known() -> None:
    driver = scripted.driver()
    driver.script("CreateVolume", hold := Hold())
    async with provisioning(driver) as w:
        made = await claim(w)
        await asyncio.sleep(1)
        await drop_claim(w)
        await asyncio.sleep(1)
        assert (await get(w)).is_deleting
        hold.release()
        await asyncio.sleep(1)
        assert await w.client.find(PersistentVolumeClaim, "data", "default") is None
        (volume,) = await volumes(w)
        assert volume.spec.claim_ref is not None
        assert volume.spec.claim_ref.uid == made.uid
        await release(w, volume.name)
        await asyncio.sleep(1)
        assert await volumes(w) == []
        assert driver.volumes == {}


@pytest.mark.virtual
@pytest.mark.parametrize("deleted", ["not", "before the crash", "while it is down"])
async def test_a_provisioner_that_dies_in_the_call_leaks_nothing(deleted: str) -> None:
    driver = scripted.driver("attach", "topology")
    caller = sdk.Local(driver, component="csi-provisioner")
    driver.script("CreateVolume", hold := Hold())
    async with world() as w:
        await w.client.create(storage_class())
        for name, zone in (("n1", "a"), ("n2", "b")):
            await node(w, name, zone)
        async with provisioner_of(w, caller):
            made = await claim(w)
            await asyncio.sleep(1)
            if deleted == "before the crash":
                await drop_claim(w)
        hold.release()  # the driver creates the volume; its answer is lost
        await asyncio.sleep(1)
        assert len(driver.volumes) == 1
        if deleted == "while it is down":
            await drop_claim(w)
        # The world moves on: neither the class nor the nodes are what they were.
        await w.client.delete(StorageClass, "fast")
        await w.client.delete(CSINode, "n2")
        await w.client.delete(Node, "n2")
        async with provisioner_of(w, caller):
            await asyncio.sleep(30)
            first, second = driver.requests_of("CreateVolume")
            assert first == second
            (volume,) = await volumes(w)
            assert volume.name == f"pvc-{made.uid}"
            gone = await w.client.find(PersistentVolumeClaim, "data", "default") is None
            assert gone is (deleted != "not")
            if gone:
                await release(w, volume.name)
                await asyncio.sleep(1)
                assert driver.volumes == {}
        await caller.close()


@pytest.mark.virtual
async def test_a_timed_out_call_is_repeated_with_the_same_arguments() -> None:
    driver = scripted.driver("attach", "topology")
    driver.script("CreateVolume", Lose(), Fail(Code.ABORTED), Fail(Code.UNAVAILABLE))
    async with provisioning(driver) as w:
        await node(w, "n1", "a")
        await node(w, "n2", "b")
        await claim(w)
        await asyncio.sleep(0.5)
        await w.client.delete(CSINode, "n2")
        await w.client.delete(Node, "n2")
        await asyncio.sleep(60)
        requests = driver.requests_of("CreateVolume")
        assert len(requests) == 4
        assert all(r == requests[0] for r in requests)
        assert len(driver.volumes) == 1
        assert len(await volumes(w)) == 1


@pytest.mark.virtual
async def test_a_final_error_is_told_the_order_taken_back_and_the_call_tried_again() -> None:
    driver = scripted.driver()
    driver.script("CreateVolume", Fail(Code.INTERNAL, "no luck"))
    async with provisioning(driver) as w:
        await claim(w)
        await asyncio.sleep(0.5)
        during = await get(w)
        assert PROVISIONING_INTENT_FINALIZER not in during.metadata.finalizers
        failure = (
            'failed to provision volume with StorageClass "fast": rpc error: code = Internal desc = no luck'
        )
        assert ("Warning", "ProvisioningFailed", failure) in await reasons(w)
        await asyncio.sleep(1)
        assert len(await volumes(w)) == 1


@pytest.mark.virtual
async def test_the_pauses_between_tries_double() -> None:
    driver = scripted.driver()
    driver.script("CreateVolume", *[Fail(Code.INTERNAL)] * 100)
    async with provisioning(driver, retry_interval_max=8.0) as w:
        await claim(w)
        counts = []
        for seconds in (0.5, 1, 2, 4, 8, 8):
            await asyncio.sleep(seconds)
            counts.append(len(driver.requests_of("CreateVolume")))
        assert counts == [1, 2, 3, 4, 5, 6]


@pytest.mark.virtual
async def test_a_deleted_claim_is_forgotten_after_a_final_error() -> None:
    driver = scripted.driver()
    driver.script("CreateVolume", Fail(Code.UNAVAILABLE), *[Fail(Code.INTERNAL)] * 100)
    async with provisioning(driver) as w:
        await claim(w)
        await asyncio.sleep(0.5)
        await drop_claim(w)
        await asyncio.sleep(100)
        assert await w.client.find(PersistentVolumeClaim, "data", "default") is None
        assert len(driver.requests_of("CreateVolume")) == 2


@pytest.mark.virtual
async def test_a_claim_torn_away_by_force_is_still_brought_to_an_end() -> None:
    driver = scripted.driver()
    driver.script("CreateVolume", hold := Hold())
    async with provisioning(driver) as w:
        old = await claim(w)
        await asyncio.sleep(0.5)
        await w.client.patch(
            PersistentVolumeClaim, "data", "default", merge={"metadata": {"finalizers": None}}
        )
        await w.client.delete(PersistentVolumeClaim, "data", "default", missing_ok=True)
        new = await claim(w)
        await asyncio.sleep(0.5)
        hold.release()
        await asyncio.sleep(5)
        names = sorted(v.name for v in await volumes(w))
        assert names == sorted([f"pvc-{old.uid}", f"pvc-{new.uid}"])
        assert PROVISIONING_INTENT_FINALIZER not in (await get(w)).metadata.finalizers


@pytest.mark.virtual
async def test_a_claim_that_vanishes_before_the_order_is_written_gets_no_volume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = scripted.driver()
    async with world() as w:
        await w.client.create(storage_class())
        role = w.role("csi-provisioner")
        patch = role.patch

        async def too_late(*args: Any, **options: Any) -> Any:
            await drop_claim(w)
            return await patch(*args, **options)

        monkeypatch.setattr(role, "patch", too_late)
        async with provisioner_of(w, driver, role):
            await claim(w)
            await asyncio.sleep(60)
            assert driver.calls == []
            assert await volumes(w) == []


@pytest.mark.virtual
async def test_wrong_arguments_are_not_repeated_for_five_minutes_unless_the_class_is_new() -> None:
    driver = scripted.driver()
    driver.script("CreateVolume", *[Fail(Code.INVALID_ARGUMENT, "no such type")] * 2)
    async with provisioning(driver) as w:
        await claim(w)
        await asyncio.sleep(290)
        assert len(driver.requests_of("CreateVolume")) == 1
        assert (
            "Warning",
            "ProvisioningFailed",
            "Volume provisioning failed with infeasible error. Retries will be delayed. "
            "rpc error: code = InvalidArgument desc = no such type",
        ) in await reasons(w)
        await asyncio.sleep(20)
        assert len(driver.requests_of("CreateVolume")) == 2
        await w.client.delete(StorageClass, "fast")
        await w.client.create(storage_class())
        await asyncio.sleep(1)
        assert len(driver.requests_of("CreateVolume")) == 3
        assert len(await volumes(w)) == 1


@pytest.mark.virtual
async def test_a_class_that_comes_late_is_noticed() -> None:
    driver = scripted.driver()
    async with provisioning(driver) as w:
        await claim(w, storage_class="slow")
        await asyncio.sleep(200)
        await w.client.create(storage_class("slow"))
        await asyncio.sleep(0.1)
        assert len(await volumes(w)) == 1
        assert [r for _, r, _ in await reasons(w) if r == "ProvisioningFailed"] == []


@pytest.mark.virtual
async def test_a_volume_that_cannot_be_saved_is_saved_later_and_never_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = scripted.driver()
    async with world() as w:
        await w.client.create(storage_class())
        role = w.role("csi-provisioner")
        create = role.create
        away = True

        async def refusing(obj: Any, **options: Any) -> Any:
            if away and isinstance(obj, PersistentVolume):
                raise Unavailable("not now")
            return await create(obj, **options)

        monkeypatch.setattr(role, "create", refusing)
        async with provisioner_of(w, driver, role):
            await claim(w)
            await asyncio.sleep(600)
            assert await volumes(w) == []
            assert PROVISIONING_INTENT_FINALIZER in (await get(w)).metadata.finalizers
            away = False
            await asyncio.sleep(1000)
            assert len(await volumes(w)) == 1
            assert driver.requests_of("DeleteVolume") == []
            assert len(driver.requests_of("CreateVolume")) == 1


@pytest.mark.virtual
async def test_a_volume_smaller_than_asked_is_deleted_and_made_again() -> None:
    driver = scripted.driver()
    driver.answers = 1 << 20
    async with provisioning(driver) as w:
        await claim(w)
        await asyncio.sleep(0.5)
        assert driver.volumes == {}
        assert await volumes(w) == []
        driver.answers = 0  # says nothing: as asked
        await asyncio.sleep(2)
        (volume,) = await volumes(w)
        assert volume.spec.capacity == {"storage": "1Gi"}


@pytest.mark.virtual
async def test_a_secret_goes_to_the_driver_and_its_absence_is_told() -> None:
    driver = scripted.driver()
    prefix = "csi.storage.k8s.io/provisioner-secret-"
    async with provisioning(driver) as w:
        made = storage_class("secret", **{prefix + "name": "${pvc.name}", prefix + "namespace": "default"})
        await w.client.create(made)
        await claim(w, storage_class="secret")
        await asyncio.sleep(0.5)
        assert driver.calls == []
        (failure,) = [m for _, r, m in await reasons(w) if r == "ProvisioningFailed"]
        assert '"default/data"' in failure
        secret = Secret(metadata=ObjectMeta(name="data", namespace="default"), data={"k": b"v"})
        await w.client.create(secret)
        await asyncio.sleep(2)
        assert driver.requests_of("CreateVolume")[0].secrets == {"k": "v"}
        (volume,) = await volumes(w)
        await w.client.delete(Secret, "data", "default")
        await release(w, volume.name)
        await asyncio.sleep(1)
        assert driver.volumes == {}  # deleted without the secret


# --- topology


async def node(w: InProcessEnv, name: str, zone: str) -> None:
    await w.client.create(Node(metadata=ObjectMeta(name=name, labels={ZONE: zone})))
    await register(w, name)


async def register(w: InProcessEnv, name: str) -> None:
    drivers = (CSINodeDriver(name=NAME, node_id=f"i-{name}", topology_keys=(ZONE,)),)
    await w.client.create(CSINode(metadata=ObjectMeta(name=name), spec=CSINodeSpec(drivers=drivers)))


@pytest.mark.virtual
async def test_a_volume_is_made_where_its_pod_will_be() -> None:
    driver = scripted.driver("attach", "topology")
    driver.zones = ("b",)
    async with provisioning(driver) as w:
        await w.client.create(storage_class("late", "WaitForFirstConsumer"))
        for name, zone in (("n1", "a"), ("n2", "b"), ("n3", "c")):
            await node(w, name, zone)
        await claim(w, storage_class="late")
        await asyncio.sleep(5)
        assert driver.calls == []
        chosen = {"metadata": {"annotations": {SELECTED_NODE_ANNOTATION: "n2"}}}
        await w.client.patch(PersistentVolumeClaim, "data", "default", merge=chosen)
        await asyncio.sleep(1)
        (request,) = driver.requests_of("CreateVolume")
        needs = request.accessibility_requirements
        assert [t.segments[ZONE] for t in needs.requisite] == ["a", "b", "c"]
        assert [t.segments[ZONE] for t in needs.preferred] == ["b", "c", "a"]
        (volume,) = await volumes(w)
        assert volume.spec.node_affinity is not None
        assert volume.spec.node_affinity.required is not None
        (term,) = volume.spec.node_affinity.required.node_selector_terms
        assert (term.match_expressions[0].key, term.match_expressions[0].values) == (ZONE, ("b",))


@pytest.mark.virtual
async def test_a_driver_that_registers_late_wakes_the_claims_that_wait_for_a_place() -> None:
    driver = scripted.driver("attach", "topology")
    async with provisioning(driver) as w:
        await claim(w)
        await asyncio.sleep(200)
        assert driver.calls == []
        await node(w, "n1", "a")
        await asyncio.sleep(0.1)
        assert len(await volumes(w)) == 1


@pytest.mark.virtual
async def test_a_request_that_the_binder_leaves_is_removed_when_the_claim_is_bound() -> None:
    async with provisioning(scripted.driver()) as w:
        await claim(w)
        await asyncio.sleep(0.1)
        (volume,) = await volumes(w)
        assert PROVISIONING_INTENT_FINALIZER in (await get(w)).metadata.finalizers
        spec, bound = {"spec": {"volumeName": volume.name}}, {"status": {"phase": "Bound"}}
        await w.client.patch(PersistentVolumeClaim, "data", "default", merge=spec)
        await asyncio.sleep(0.1)
        assert PROVISIONING_INTENT_FINALIZER in (await get(w)).metadata.finalizers
        await w.client.patch(PersistentVolumeClaim, "data", "default", merge=bound, subresource="status")
        await asyncio.sleep(0.1)
        after = await get(w)
        assert PROVISIONING_INTENT_FINALIZER not in after.metadata.finalizers
        assert PROVISIONING_INTENT_FINALIZER not in after.metadata.annotations


@pytest.mark.virtual
async def test_a_deleted_claim_gets_no_second_volume_while_its_cache_is_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = scripted.driver()
    async with world() as w:
        await w.client.create(storage_class())
        role = w.role("csi-provisioner")
        async with provisioner_of(w, driver, role):
            made = await claim(w)
            await asyncio.sleep(0.1)
            late: list[Any] = []
            claims = role.cache(PersistentVolumeClaim)
            apply = claims._apply
            monkeypatch.setattr(claims, "_apply", late.append)
            removal = {"metadata": {"finalizers": None, "annotations": {PROVISIONING_INTENT_FINALIZER: None}}}
            await w.client.patch(PersistentVolumeClaim, "data", "default", merge=removal)  # by the binder
            await w.client.delete(PersistentVolumeClaim, "data", "default")
            await release(w, f"pvc-{made.uid}")
            await asyncio.sleep(BIND_GRACE + 1)
            assert await volumes(w) == []
            assert [name for name, _ in driver.calls].count("CreateVolume") == 1
            for batch in late:
                apply(batch)
            await asyncio.sleep(60)
            assert [name for name, _ in driver.calls].count("CreateVolume") == 1


@pytest.mark.virtual
async def test_no_room_on_the_selected_node_gives_the_node_back() -> None:
    driver = scripted.driver("attach", "topology")
    driver.script("CreateVolume", Fail(Code.RESOURCE_EXHAUSTED, "full"))
    async with provisioning(driver) as w:
        await w.client.create(storage_class("late", "WaitForFirstConsumer"))
        await node(w, "n1", "a")
        await claim(w, node="n1", storage_class="late")
        await asyncio.sleep(60)
        after = await get(w)
        assert SELECTED_NODE_ANNOTATION not in after.metadata.annotations
        assert PROVISIONING_INTENT_FINALIZER not in after.metadata.finalizers
        assert len(driver.requests_of("CreateVolume")) == 1
        again = {"metadata": {"annotations": {SELECTED_NODE_ANNOTATION: "n1"}}}
        await w.client.patch(PersistentVolumeClaim, "data", "default", merge=again)
        await asyncio.sleep(0.1)
        assert len(await volumes(w)) == 1


@pytest.mark.virtual
async def test_no_room_for_an_immediate_claim_only_means_later() -> None:
    driver = scripted.driver("attach", "topology")
    driver.script("CreateVolume", Fail(Code.RESOURCE_EXHAUSTED))
    async with provisioning(driver) as w:
        await node(w, "n1", "a")
        await claim(w)
        await asyncio.sleep(0.5)
        assert len(driver.requests_of("CreateVolume")) == 1
        await asyncio.sleep(1)
        assert len(await volumes(w)) == 1


@pytest.mark.virtual
async def test_another_error_keeps_the_selected_node() -> None:
    driver = scripted.driver("attach", "topology")
    driver.script("CreateVolume", *[Fail(Code.INTERNAL)] * 10)
    async with provisioning(driver) as w:
        await node(w, "n1", "a")
        await claim(w, node="n1")
        await asyncio.sleep(5)
        assert (await get(w)).metadata.annotations[SELECTED_NODE_ANNOTATION] == "n1"


@pytest.mark.virtual
async def test_a_selected_node_without_registration_is_given_back() -> None:
    driver = scripted.driver("attach", "topology")
    async with provisioning(driver) as w:
        await claim(w, node="gone")
        await asyncio.sleep(1)
        assert SELECTED_NODE_ANNOTATION not in (await get(w)).metadata.annotations
        assert driver.calls == []


# --- deletion


@pytest.mark.virtual
async def test_a_volume_is_not_deleted_while_it_is_attached() -> None:
    driver = scripted.driver("attach", "readonly")
    async with provisioning(driver) as w:
        await claim(w)
        await asyncio.sleep(0.5)
        (volume,) = await volumes(w)
        source = VolumeAttachmentSource(persistent_volume_name=volume.name)
        spec = VolumeAttachmentSpec(attacher=NAME, source=source, node_name="n1")
        await w.client.create(VolumeAttachment(metadata=ObjectMeta(name="va"), spec=spec))
        await release(w, volume.name)
        await asyncio.sleep(100)
        assert driver.requests_of("DeleteVolume") == []
        why = f"persistentvolume {volume.name} is still attached to node n1"
        assert ("Warning", "VolumeFailedDelete", why) in await reasons(w, volume.name)
        await w.client.delete(VolumeAttachment, "va")
        await asyncio.sleep(0.1)
        assert await volumes(w) == []
        assert driver.volumes == {}


@pytest.mark.virtual
async def test_a_failed_deletion_is_told_and_repeated() -> None:
    driver = scripted.driver()
    driver.script("DeleteVolume", Fail(Code.INTERNAL, "busy"), Lose())
    async with provisioning(driver) as w:
        await claim(w)
        await asyncio.sleep(0.5)
        (volume,) = await volumes(w)
        await release(w, volume.name)
        await asyncio.sleep(0.5)
        events = await reasons(w, volume.name)
        assert ("Warning", "VolumeFailedDelete", "rpc error: code = Internal desc = busy") in events
        assert (await volumes(w))[0].status.phase == "Released"
        await asyncio.sleep(10)
        assert await volumes(w) == []
        assert len(driver.requests_of("DeleteVolume")) == 3


@pytest.mark.virtual
async def test_a_policy_changed_to_retain_keeps_the_disk_and_lets_the_object_go() -> None:
    driver = scripted.driver()
    async with provisioning(driver) as w:
        await claim(w)
        await asyncio.sleep(0.5)
        (volume,) = await volumes(w)
        keep = {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}
        await w.client.patch(PersistentVolume, volume.name, merge=keep)
        await asyncio.sleep(0.5)
        (volume,) = await volumes(w)
        assert EXTERNAL_PROVISIONER_FINALIZER not in volume.metadata.finalizers
        await release(w, volume.name)
        await asyncio.sleep(5)
        assert len(driver.volumes) == 1
        assert driver.requests_of("DeleteVolume") == []


async def test_two_hundred_claims_over_a_real_socket_and_back() -> None:
    driver = scripted.driver()
    async with (
        world() as w,
        scripted.on_socket(driver) as socket,
        CsiChannel(socket.path, component="csi-provisioner") as channel,
    ):
        await w.client.create(storage_class())
        async with running(provisioner.run(w.role("csi-provisioner"), ProvisionerOptions(), caller=channel)):
            await asyncio.gather(*(claim(w, f"data-{n}") for n in range(200)))

            async def all_exist() -> bool:
                return len(await volumes(w)) == 200

            await until(all_exist)
            assert len(driver.volumes) == 200

            async def no_intent_left() -> bool:
                found = await w.client.list(PersistentVolumeClaim, "default")
                return not any(PROVISIONING_INTENT_FINALIZER in c.metadata.finalizers for c in found)

            await until(no_intent_left)
            await asyncio.gather(*(release(w, v.name) for v in await volumes(w)))

            async def all_gone() -> bool:
                return not await volumes(w)

            await until(all_gone)
    assert driver.volumes == {}
