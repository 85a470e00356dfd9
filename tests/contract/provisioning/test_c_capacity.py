"""Contract provisioning C.8 and C.9: published capacities, and a provisioner on every node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.provisioning.claims_env import PATIENCE, ClaimsEnv, claims_env, provision, provisioning
from tests.loops.inprocess import until
from tests.support import scripted
from tests.support.scripted import Fail
from tests.support.timing import GRAIN, is_virtual
from volplane.api import codec
from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.apps import ReplicaSet
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import CSINode, CSIStorageCapacity, StorageClass
from volplane.base import clock
from volplane.csi import v1
from volplane.csi.outcome import Code

both = pytest.mark.both

GI = 1 << 30


async def published(s: ClaimsEnv, count: int) -> list[CSIStorageCapacity]:
    async def there() -> tuple[list[CSIStorageCapacity]] | None:
        found = await s.client.list(CSIStorageCapacity)
        return (found,) if len(found) == count else None

    (found,) = await until(there, 60)
    return list(found)


def by_zone(found: list[CSIStorageCapacity]) -> dict[str, tuple[str | None, str | None]]:
    return {
        c.node_topology.match_labels[scripted.ZONE]: (c.capacity, c.maximum_volume_size)
        for c in found
        if c.node_topology is not None
    }


async def tells(s: ClaimsEnv, wanted: dict[str, tuple[str | None, str | None]]) -> bool:
    return by_zone(await s.client.list(CSIStorageCapacity)) == wanted


CAPACITY: dict[str, Any] = {
    "enable_capacity": True,
    "capacity_ownerref_level": -1,
    "namespace": "kube-system",
}


@both
async def test_one_object_per_class_and_segment() -> None:
    driver = scripted.driver("topology", "capacity")
    driver.available = {"a": 10 * GI, "b": 20 * GI}
    driver.largest = 5 * GI
    async with claims_env(driver, **CAPACITY) as s:
        await s.storage_class("late", mode="WaitForFirstConsumer", parameters={"type": "gp3"})
        await s.storage_class("now")
        await s.client.create(
            codec.convert(StorageClass, {"metadata": {"name": "x"}, "provisioner": "other"})
        )
        await s.node("n1", "a")
        await s.node("n2", "b")
        await s.node("n3", "b")
        found = await published(s, 2)
        assert by_zone(found) == {"a": ("10Gi", "5Gi"), "b": ("20Gi", "5Gi")}
        for each in found:
            assert each.storage_class_name == "late"
            assert each.namespace == "kube-system"
            assert each.name.startswith("csisc-")
            assert each.metadata.labels == {
                "csi.storage.k8s.io/drivername": scripted.NAME,
                "csi.storage.k8s.io/managed-by": "external-provisioner",
            }
        for request in driver.requests_of("GetCapacity"):
            assert dict(request.parameters) == {"type": "gp3"}
            assert not request.volume_capabilities


@both
async def test_capacities_follow_the_driver_the_classes_the_nodes_and_hands_that_meddle() -> None:
    driver = scripted.driver("topology", "capacity")
    driver.available = {"a": 10 * GI}
    poll = 60.0 if is_virtual() else 0.5
    async with claims_env(
        driver, **CAPACITY, **(dict[str, Any]() if is_virtual() else {"capacity_poll_interval": poll})
    ) as s:
        await s.storage_class("late", mode="WaitForFirstConsumer")
        await s.node("n1", "a")
        (first,) = await published(s, 1)
        driver.available = {"a": 3 * GI}
        await asyncio.sleep(poll)
        await until(lambda: tells(s, {"a": ("3Gi", None)}), PATIENCE)
        await asyncio.sleep(poll)
        await s.called("GetCapacity", 3)
        # Nothing but the time is a reason to ask, neither what we wrote ourselves.
        assert min(driver.pauses("GetCapacity")) > poll - GRAIN
        await s.client.delete(CSIStorageCapacity, first.name, "kube-system")
        (again,) = await published(s, 1)
        assert again.uid != first.uid
        await s.client.patch(CSIStorageCapacity, again.name, "kube-system", merge={"capacity": "1Ti"})
        await until(lambda: tells(s, {"a": ("3Gi", None)}), PATIENCE)
        await s.client.delete(CSINode, "n1")
        await s.client.delete(Node, "n1")
        await published(s, 0)
        await s.node("n2", "a")
        await published(s, 1)
        await s.delete(StorageClass, "late")
        await published(s, 0)


@both
async def test_a_volume_that_was_made_or_deleted_changes_what_is_published_at_once() -> None:
    driver = scripted.driver("topology", "capacity")
    driver.available = {"a": 10 * GI}
    async with claims_env(driver, capacity_for_immediate_binding=True, **CAPACITY) as s:
        await s.storage_class()
        await s.node("n1", "a")
        await published(s, 1)
        driver.available = {"a": 9 * GI}
        await s.claim()
        await s.bound()
        await until(lambda: tells(s, {"a": ("9Gi", None)}), PATIENCE)
        driver.available = {"a": 10 * GI}
        _, held = await s.bound()
        await s.delete(PersistentVolumeClaim, "data")
        await s.gone(PersistentVolume, held.name)
        await until(lambda: tells(s, {"a": ("10Gi", None)}), PATIENCE)


@both
async def test_duplicates_go_and_the_objects_belong_to_the_drivers_workload() -> None:
    driver = scripted.driver("capacity")
    async with claims_env(driver, roles=()) as s:
        whole = {
            "metadata": {"name": "rs", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}},
        }
        whole["spec"]["template"] = {  # type: ignore[index]
            "metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }
        owner = await s.client.create(codec.convert(ReplicaSet, whole))
        ref = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": "rs",
            "uid": owner.uid,
            "controller": True,
        }
        await s.client.create(
            codec.convert(
                Pod,
                {
                    "metadata": {"name": "me", "namespace": "default", "ownerReferences": [ref]},
                    "spec": {"containers": [{"name": "c", "image": "i"}]},
                },
            )
        )
        await s.storage_class("late", mode="WaitForFirstConsumer")
        drivers = [{"name": scripted.NAME, "nodeID": "n1", "topologyKeys": []}]
        await s.client.create(
            codec.convert(CSINode, {"metadata": {"name": "n1"}, "spec": {"drivers": drivers}})
        )
        labels = {
            "csi.storage.k8s.io/drivername": scripted.NAME,
            "csi.storage.k8s.io/managed-by": "external-provisioner",
        }
        for name in ("one", "two"):
            old = {
                "metadata": {"name": name, "namespace": "default", "labels": labels},
                "storageClassName": "late",
                "nodeTopology": {},
                "capacity": "1Gi",
            }
            await s.client.create(codec.convert(CSIStorageCapacity, old))
        role = s.around.role("csi-provisioner")
        async with provisioning(role, driver, enable_capacity=True, namespace="default"):

            async def renewed() -> bool:
                return [c.capacity for c in await s.client.list(CSIStorageCapacity)] == ["1Ti"]

            await until(renewed, PATIENCE)
            (left,) = await published(s, 1)
            (reference,) = left.metadata.owner_references
            assert (reference.kind, reference.uid) == ("ReplicaSet", owner.uid)


# --- one provisioner per node


class OnNode:
    """The driver as it is on one node."""

    def __init__(self, zone: str) -> None:
        class Local(type(scripted.driver("topology", "capacity"))):  # type: ignore[misc]
            async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
                place = v1.Topology(segments={scripted.ZONE: zone})
                return v1.NodeGetInfoResponse(node_id=zone, accessible_topology=place)

        self.driver: Any = Local()
        self.driver.zones = (zone,)


@both
async def test_each_nodes_provisioner_makes_and_deletes_its_own_volumes() -> None:
    one, two = OnNode("a").driver, OnNode("b").driver
    async with claims_env(roles=("binder", "claim-protection", "volume-protection")) as s:
        await s.storage_class(mode="WaitForFirstConsumer")
        role = s.around.role
        async with (
            provisioning(role("one"), one, node_deployment=True, node="n1", strict_topology=True),
            provisioning(role("two"), two, node_deployment=True, node="n2", strict_topology=True),
        ):
            await s.claim(notes={SELECTED_NODE_ANNOTATION: "n2"})
            _, held = await s.bound()
            assert one.requests_of("CreateVolume") == []
            (request,) = two.requests_of("CreateVolume")
            asked = request.accessibility_requirements
            assert [dict(t.segments) for t in asked.requisite] == [{scripted.ZONE: "b"}]
            assert held.spec.csi is not None
            identity = held.spec.csi.volume_attributes["storage.kubernetes.io/csiProvisionerIdentity"]
            assert identity.endswith(f"-{scripted.NAME}-n2")
            await s.delete(PersistentVolumeClaim, "data")
            await s.gone(PersistentVolume, held.name)
            assert one.requests_of("DeleteVolume") == []
            assert len(two.requests_of("DeleteVolume")) == 1


BASE = "node_deployment_base_delay"


def soon() -> dict[str, float]:
    """Turns of a third of a minute come at once where time is real."""
    return {} if is_virtual() else {BASE: 0.4, "node_deployment_max_delay": 1.2}


def least() -> float:
    """Seconds before anybody has a turn: it comes at random, after half of the delay to half more."""
    return float(soon().get(BASE, 20.0)) / 2 - GRAIN


@both
async def test_an_immediate_claim_goes_to_a_node_with_room_after_a_while() -> None:
    full, free = OnNode("a").driver, OnNode("b").driver
    full.available = {"a": 1}
    async with claims_env(roles=("binder",)) as s:
        await s.storage_class()
        role = s.around.role
        async with (
            provisioning(role("one"), full, node_deployment=True, node="n1", **soon()),
            provisioning(role("two"), free, node_deployment=True, node="n2", **soon()),
        ):
            begun = clock.now()
            await s.claim()
            if is_virtual():
                await asyncio.sleep(60)
            mine, _ = await s.bound()
            assert free.call_times("GetCapacity")[0] - begun > least()
            assert mine.metadata.annotations[SELECTED_NODE_ANNOTATION] == "n2"
            assert full.requests_of("CreateVolume") == []
            assert len(free.requests_of("CreateVolume")) == 1


@both
async def test_two_nodes_with_room_make_one_volume() -> None:
    one, two = OnNode("a").driver, OnNode("b").driver
    async with claims_env(roles=("binder",)) as s:
        await s.storage_class()
        role = s.around.role
        async with (
            provisioning(role("one"), one, node_deployment=True, node="n1", **soon()),
            provisioning(role("two"), two, node_deployment=True, node="n2", **soon()),
        ):
            for i in range(10):
                await s.claim(f"c{i}")
            if is_virtual():
                await asyncio.sleep(300)
            for i in range(10):
                await s.bound(f"c{i}")
            assert len(one.volumes) + len(two.volumes) == 10


@both
async def test_a_node_that_turns_out_to_be_full_gives_the_claim_back() -> None:
    one = OnNode("a").driver
    one.script("CreateVolume", Fail(Code.RESOURCE_EXHAUSTED))
    async with claims_env(roles=("binder",)) as s:
        await s.storage_class()
        async with provisioning(s.around.role("one"), one, node_deployment=True, node="n1", **soon()):
            begun = clock.now()
            await s.claim()
            if is_virtual():
                await asyncio.sleep(200)  # two turns, at most a minute each
            await s.bound()
            first, second = one.call_times("CreateVolume")
            assert first - begun > least()
            assert second - first > least()  # the claim was nobody's again, and had to wait for its turn


@both
async def test_the_flags_that_need_something_say_so() -> None:
    async with claims_env(roles=()) as s:
        for driver, flags, said in (
            (scripted.driver(), {"enable_capacity": True}, "GET_CAPACITY"),
            (scripted.driver(), {"node_deployment": True}, "NODE_NAME"),
        ):
            with pytest.raises(Exception, match=said):
                await provision(s.around.role("x"), driver, **flags)
