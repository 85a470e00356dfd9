"""Contract attach-and-mount E: the scheduler, case by case, on the real API server."""

from __future__ import annotations

import pytest

from tests.controllers.objects import DRIVER, claim, driver, node, pod, volume
from tests.loops.inprocess import until
from tests.support.scheduler_env import NO_VICTIM, NOT_HELPFUL, ZONE, capacity, in_zone, scheduler_env, tail
from volplane.api import codec
from volplane.api.annotations import BOUND_BY_CONTROLLER_ANNOTATION, SELECTED_NODE_ANNOTATION
from volplane.api.core import Event, Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import CSIStorageCapacity, VolumeAttachment
from volplane.scheduler.profile import SchedulerProfile

pytestmark = pytest.mark.virtual
IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by "
    "another pod"
)

# Immediate PVC unbound → exact message incl. trailing `not found`; PVC bound → scheduled, PVC not touched.


async def test_an_unbound_immediate_claim_is_told_with_the_trailing_not_found() -> None:
    async with scheduler_env(node("a"), node("b")) as b:
        await b.client.create(pod("p", "data"))
        await b.expect_unschedulable(
            "p", '0/2 nodes are available: persistentvolumeclaim "data" not found. not found'
        )
        await b.client.create(claim("data", cls="now"))
        await b.expect_unschedulable(
            "p", "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
        )
        events = [e for e in await b.client.list(Event, "default") if e.reason == "FailedScheduling"]
        assert {(e.type, e.action) for e in events} == {("Warning", "Scheduling")}


async def test_a_pod_with_a_bound_claim_is_scheduled_without_touching_it() -> None:
    async with scheduler_env(node("a"), node("b")) as b:
        await b.create_bound_claim("data")
        before = await b.wait_until_bound("data")
        await b.client.create(pod("p", "data"))
        await b.wait_until_scheduled("p")
        await b.settle()
        assert (await b.claim("data")).metadata.resource_version == before.metadata.resource_version
        assert SELECTED_NODE_ANNOTATION not in before.metadata.annotations


# WFFC PVC: selected-node written before pod binding; provisioner removes it → pod retried, maybe elsewhere.


async def test_a_delayed_claim_gets_its_node_before_the_pod_does() -> None:
    async with scheduler_env(node("a"), node("b", zone="b")) as b:
        await b.client.create(claim("data", cls="late"))
        await b.client.create(pod("p", "data"))
        assert await b.wait_for_selected_node("data") == "a"
        await b.settle(60)
        assert (await b.client.get(Pod, "p", "default")).spec.node_name == ""
        await b.provision("data")
        assert await b.wait_until_scheduled("p") == "a"


async def test_a_provisioner_that_removes_the_selected_node_sends_the_pod_elsewhere() -> None:
    async with scheduler_env(node("a"), node("b", zone="b")) as b:
        await b.client.create(claim("data", cls="late"))
        await b.client.create(pod("p", "data"))
        assert await b.wait_for_selected_node("data") == "a"
        await b.client.patch(Node, "a", merge={"spec": {"unschedulable": True}})
        await b.give_up("data")
        await b.expect_event(
            "FailedScheduling",
            'running PreBind plugin "VolumeBinding": binding volumes: provisioning failed for PVC "data"',
        )

        async def moved() -> bool:
            return (await b.claim("data")).metadata.annotations.get(SELECTED_NODE_ANNOTATION) == "b"

        await until(moved)
        await b.provision("data", zone="b")
        assert await b.wait_until_scheduled("p") == "b"


async def test_a_claim_that_lost_all_its_annotations_aborts_with_a_text_of_its_own() -> None:
    async with scheduler_env(node("a"), binder=False) as b:
        await b.client.create(claim("data", cls="late"))
        await b.client.create(pod("p", "data"))
        await b.wait_for_selected_node("data")
        await b.client.patch(
            PersistentVolumeClaim, "data", "default", merge={"metadata": {"annotations": None}}
        )
        await b.expect_event(
            "FailedScheduling",
            'running PreBind plugin "VolumeBinding": binding volumes: '
            'selectedNode annotation reset for PVC "data"',
        )


# Provisioner never answers → 600 s, then FailedScheduling, PVC keeps selected-node, so retries stick to it.


@pytest.mark.parametrize("timeout", [600.0, 5.0])
async def test_a_provisioner_that_never_answers_times_out_and_the_node_stays_chosen(timeout: float) -> None:
    async with scheduler_env(node("a"), node("b"), profiles=[SchedulerProfile(bind_timeout=timeout)]) as b:
        await b.client.create(claim("data", cls="late"))
        await b.client.create(pod("p", "data"))
        chosen = await b.wait_for_selected_node("data")
        await b.settle(timeout - 1)
        assert await b.condition("p") is None
        await b.settle(2)
        await b.expect_unschedulable(
            "p",
            'running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded',
            "SchedulerError",
        )
        await b.settle(30)
        assert await b.wait_for_selected_node("data") == chosen
        await b.provision("data")
        assert await b.wait_until_scheduled("p") == chosen


# PV nodeAffinity on zone-a, only zone-a node cordoned → two reasons with counts.


async def test_a_volume_in_the_zone_of_a_cordoned_node_gives_two_reasons_with_counts() -> None:
    nodes = (node("a", unschedulable=True), node("b", zone="b"), node("c", zone="c"))
    async with scheduler_env(*nodes) as b:
        await b.create_bound_claim("data", **in_zone("a"))
        await b.wait_until_bound("data")
        await b.client.create(pod("p", "data"))
        await b.expect_unschedulable(
            "p",
            "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't match "
            "PersistentVolume's node affinity." + tail(3, NOT_HELPFUL),
        )
        await b.client.patch(Node, "a", merge={"spec": {"unschedulable": None}})
        assert await b.wait_until_scheduled("p") == "a"


async def test_a_volume_labelled_with_its_zone_only_has_no_available_volume_zone_elsewhere() -> None:
    async with scheduler_env(node("a", unschedulable=True), node("b", zone="b")) as b:
        await b.create_bound_claim("data", metadata={"labels": {ZONE: "a"}})
        await b.wait_until_bound("data")
        await b.client.create(pod("p", "data"))
        await b.expect_unschedulable(
            "p",
            "0/2 nodes are available: 1 node(s) had no available volume zone, 1 node(s) were unschedulable."
            + tail(2, NOT_HELPFUL),
        )


# Limit 2: two pods sharing one PVC + one more PVC fit; a third PVC does not; terminating VA still counts.


async def test_a_limit_of_two_lets_two_pods_share_one_volume_and_one_more_in_but_no_third() -> None:
    async with scheduler_env(node("a")) as b:
        await b.limit("a", 2)
        for name in ("one", "two", "three"):
            await b.create_bound_claim(name)
        await b.client.create(pod("a1", "one"))
        await b.client.create(pod("a2", "one"))
        await b.client.create(pod("a3", "two"))
        for name in ("a1", "a2", "a3"):
            await b.wait_until_scheduled(name)
        await b.client.create(pod("a4", "three"))
        await b.expect_unschedulable(
            "a4", "0/1 nodes are available: 1 node(s) exceed max volume count." + tail(1, NO_VICTIM)
        )
        await b.client.delete(Pod, "a1", "default", grace=0)
        await b.settle(20)
        assert (await b.client.get(Pod, "a4", "default")).spec.node_name == ""  # a2 holds the volume still
        await b.client.delete(Pod, "a3", "default", grace=0)
        await b.wait_until_scheduled("a4")


async def test_a_terminating_attachment_without_a_pod_still_counts() -> None:
    async with scheduler_env(node("a")) as b:
        await b.limit("a", 1)
        await b.create_bound_claim("old")
        await b.create_bound_claim("new")
        attachment = {
            "metadata": {"name": "csi-old", "finalizers": [f"external-attacher/{DRIVER}"]},
            "spec": {"attacher": DRIVER, "nodeName": "a", "source": {"persistentVolumeName": "pv-old"}},
        }
        await b.client.create(codec.convert(VolumeAttachment, attachment))
        await b.client.delete(VolumeAttachment, "csi-old")
        await b.client.create(pod("p", "new"))
        await b.expect_unschedulable(
            "p", "0/1 nodes are available: 1 node(s) exceed max volume count." + tail(1, NO_VICTIM)
        )
        await b.client.patch(VolumeAttachment, "csi-old", merge={"metadata": {"finalizers": None}})
        await b.wait_until_scheduled("p")


async def test_delayed_claims_count_before_their_volumes_exist() -> None:
    async with scheduler_env(node("a")) as b:
        await b.limit("a", 2)
        for i in range(3):
            await b.client.create(claim(f"c{i}", cls="late"))
        await b.client.create(pod("p", "c0", "c1", "c2"))
        await b.expect_unschedulable(
            "p", "0/1 nodes are available: 1 node(s) exceed max volume count." + tail(1, NO_VICTIM)
        )


# Two WFFC pods racing for one static PV → only one binds (assume cache).


async def test_two_pods_that_want_the_one_static_volume_do_not_both_get_it() -> None:
    async with scheduler_env(node("a"), node("b")) as b:
        await b.client.create(volume("pv", cls="hand"))

        async def available() -> bool:
            return (await b.client.get(PersistentVolume, "pv")).status.phase == "Available"

        await until(available)
        for name in ("one", "two"):
            await b.client.create(claim(name, cls="hand"))
        for name in ("one", "two"):
            await b.client.create(pod(name, name))
        await b.wait_until_scheduled("one")
        await b.expect_unschedulable(
            "two",
            "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind."
            + tail(2, NOT_HELPFUL),
        )
        taken = await b.client.get(PersistentVolume, "pv")
        assert taken.spec.claim_ref is not None
        assert taken.spec.claim_ref.name == "one"
        assert taken.metadata.annotations[BOUND_BY_CONTROLLER_ANNOTATION] == "yes"
        await b.client.create(volume("other", cls="hand"))
        await b.wait_until_scheduled("two")


async def test_a_static_volume_whose_reference_is_reset_aborts_and_is_taken_again() -> None:
    async with scheduler_env(node("a"), binder=False) as b:
        await b.client.create(volume("pv", cls="hand"))
        available = {"status": {"phase": "Available"}}
        await b.client.patch(PersistentVolume, "pv", merge=available, subresource="status")
        await b.client.create(claim("data", cls="hand"))
        await b.client.create(pod("p", "data"))

        async def taken() -> bool:
            return (await b.client.get(PersistentVolume, "pv")).spec.claim_ref is not None

        await until(taken)
        await b.client.patch(PersistentVolume, "pv", merge={"spec": {"claimRef": None}})
        await b.expect_event(
            "FailedScheduling",
            'running PreBind plugin "VolumeBinding": binding volumes: ClaimRef got reset for pv "pv"',
        )
        await until(taken)


# RWOP in use → second pod Pending; deleting the first lets it schedule; higher priority may preempt.


async def test_a_claim_for_one_pod_is_had_by_the_next_when_the_first_is_gone() -> None:
    async with scheduler_env(node("a")) as b:
        await b.create_bound_claim("data", mode="ReadWriteOncePod")
        await b.client.create(pod("one", "data"))
        await b.wait_until_scheduled("one")
        await b.client.create(pod("two", "data"))
        await b.expect_unschedulable("two", f"0/1 nodes are available: 1 {IN_USE}." + tail(1, NO_VICTIM))
        await b.client.delete(Pod, "one", "default", grace=0)
        await b.wait_until_scheduled("two")


# StorageCapacity 10Gi, claim 20Gi → `did not have enough free storage`; a new one re-queues the pod.


async def test_a_claim_greater_than_the_capacity_waits_and_a_new_capacity_wakes_its_pod() -> None:
    async with scheduler_env(node("a")) as b:
        await b.client.create(driver(storageCapacity=True))
        await b.client.create(capacity("small", "10Gi"))
        await b.client.create(claim("data", "20Gi", cls="late"))
        await b.client.create(pod("p", "data"))
        await b.expect_unschedulable(
            "p",
            "0/1 nodes are available: 1 node(s) did not have enough free storage." + tail(1, NOT_HELPFUL),
        )
        await b.client.create(capacity("large", "30Gi"))
        assert await b.wait_for_selected_node("data") == "a"


async def test_a_capacity_that_grows_wakes_the_pod_too() -> None:
    async with scheduler_env(node("a")) as b:
        await b.client.create(driver(storageCapacity=True))
        await b.client.create(capacity("cap", "10Gi"))
        await b.client.create(claim("data", "20Gi", cls="late"))
        await b.client.create(pod("p", "data"))
        await b.expect_unschedulable(
            "p",
            "0/1 nodes are available: 1 node(s) did not have enough free storage." + tail(1, NOT_HELPFUL),
        )
        await b.client.patch(CSIStorageCapacity, "cap", "default", merge={"capacity": "30Gi"})
        assert await b.wait_for_selected_node("data") == "a"


# Scheduler crash between PVC write and pod binding → next run sees selected-node and continues on that node.
# (The process itself dies in test_e_crashes.py.)


async def test_a_new_scheduler_goes_on_where_the_old_one_died() -> None:
    async with scheduler_env(node("a"), node("b"), scheduler=False) as b:
        await b.client.create(
            claim("data", cls="late", metadata={"annotations": {SELECTED_NODE_ANNOTATION: "b"}})
        )
        await b.client.create(pod("p", "data"))
        async with b.scheduling():
            await b.provision("data")
            assert await b.wait_until_scheduled("p") == "b"


# Pod deleted during PreBind → aborts; PVC stays as is.


async def test_a_pod_deleted_while_its_volume_is_made_leaves_the_claim_as_it_is() -> None:
    async with scheduler_env(node("a")) as b:
        await b.client.create(claim("data", cls="late"))
        await b.client.create(pod("p", "data"))
        await b.wait_for_selected_node("data")
        before = await b.claim("data")
        await b.client.delete(Pod, "p", "default", grace=0)
        await b.settle(5)
        assert (await b.claim("data")).metadata.resource_version == before.metadata.resource_version
        assert not [e for e in await b.client.list(Event, "default") if e.reason == "FailedScheduling"]
        await b.client.create(pod("p", "data"))
        await b.provision("data")
        assert await b.wait_until_scheduled("p") == "a"
