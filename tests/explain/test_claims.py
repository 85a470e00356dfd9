"""A claim that waits: for whom, and what each volume that it might have had is refused for."""

from __future__ import annotations

from typing import Any

from tests.controllers.objects import claim, storage_class, volume
from tests.explain.explain_objects import (
    DRIVER,
    at,
    bound_pair,
    change,
    event,
    explain_first,
    going,
    lease,
    node,
    pod,
    report,
    running,
    waiting,
)
from volplane.api import codec
from volplane.api.core import PersistentVolumeClaim

LATER = "WaitForFirstConsumer"
SELECTED = "volume.kubernetes.io/selected-node"


def provisioned_pair(name: str, cls: str | None = "", **more: Any) -> PersistentVolumeClaim:
    metadata = {"uid": f"uid-{name}", "creationTimestamp": at(120), **more.pop("metadata", {})}
    asked: PersistentVolumeClaim = change(claim(name, cls=cls, **more), metadata=metadata)
    return asked


async def test_a_bound_claim_waits_for_nothing() -> None:
    mine, disk = bound_pair("data", "pv")
    answer = await explain_first(mine, disk)
    assert (answer.waits, answer.answer) == (False, "bound to pv, 1Gi")


async def test_a_claim_waits_for_its_first_pod() -> None:
    answer = await explain_first(provisioned_pair("data", "gp3"), storage_class("gp3", LATER))
    assert answer.answer.startswith(
        "no pod uses the claim yet, and StorageClass gp3 provisions volumes only for pods"
    )
    assert waiting(answer).since is not None


async def test_a_claim_waits_for_a_pod_that_no_node_will_have() -> None:
    user = pod("web", "data", spec={"nodeSelector": {"disk": "ssd"}})
    answer = await explain_first(
        provisioned_pair("data", "gp3"), storage_class("gp3", LATER), user, node("a"), node("b")
    )
    assert answer.answer == (
        "waiting for pod web to be scheduled: "
        "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector"
    )
    (reason,) = answer.steps[1].details
    assert reason == "a, b: node(s) didn't match Pod's node affinity/selector [NodeAffinity]"


async def test_each_volume_is_refused_for_its_own_reason() -> None:
    free = {"phase": "Available"}
    small = change(volume("small", "1Gi"), status=free)
    other = change(volume("other", "9Gi", "fast"), status=free)
    block = change(volume("block", "9Gi", volumeMode="Block"), status=free)
    answer = await explain_first(provisioned_pair("data", size="5Gi"), small, other, block)
    assert answer.answer == "no persistent volumes available for this claim and no storage class is set"
    assert waiting(answer).details == (
        "block: volumeMode is Block, not Filesystem",
        'other: storage class is "fast", not ""',
        "small: too small by 4Gi (1Gi of 5Gi)",
    )
    assert answer.advice[0].startswith("create a PersistentVolume of at least 5Gi with ReadWriteOnce")


async def test_a_class_that_does_not_exist_is_said_with_those_that_do() -> None:
    answer = await explain_first(provisioned_pair("data", "golden"), storage_class("gp3"))
    assert answer.answer == 'storageclass.storage.k8s.io "golden" not found'
    assert answer.advice == ("create StorageClass golden, or use an existing one: gp3",)


async def test_the_driver_says_why_it_makes_no_volume() -> None:
    mine = provisioned_pair("data", "gp3", metadata={"annotations": {SELECTED: "a"}})
    error = 'failed to provision volume with StorageClass "gp3": rpc error: code = OutOfRange desc = too big'
    leads = lease("ebs-csi-aws-com", "ebs-csi-controller-0")
    controller = {"name": "ebs-csi-controller-0", "namespace": "kube-system"}
    beside = pod("x", spec={"containers": [{"name": "csi-provisioner", "image": "x"}]}, metadata=controller)
    answer = await explain_first(
        mine, storage_class("gp3", LATER), event(mine, "ProvisioningFailed", error, count=7), leads, beside
    )
    assert answer.answer == f"{DRIVER} cannot create the volume: rpc error: code = OutOfRange desc = too big"
    assert waiting(answer).details == (
        "event ProvisioningFailed, 7 times, last 5s ago",
        "csi-provisioner: leader is ebs-csi-controller-0",
    )
    assert [step.what for step in answer.steps] == [
        f"StorageClass gp3 names {DRIVER}",
        "select node a",
        "create the volume (CreateVolume)",
        "bind",
    ]
    logs = "kubectl logs -n kube-system ebs-csi-controller-0 -c csi-provisioner --tail=50"
    assert answer.advice == (logs,)


async def test_the_provisioner_itself_knows_when_it_tries_again() -> None:
    mine = provisioned_pair("data", "gp3")
    note = report("csi-provisioner", "default/data", "rpc error: no room", since=40, left=11)
    answer = await explain_first(mine, storage_class("gp3"), roles=[note])
    assert answer.answer == f"{DRIVER} cannot create the volume: rpc error: no room"
    step = waiting(answer)
    assert step.until is not None
    assert (step.until - answer.at).total_seconds() == 11
    assert answer.unknown == ()


async def test_a_provisioner_that_is_down_is_found_out() -> None:
    old = lease("ebs-csi-aws-com", "ebs-csi-controller-0", ago=300)
    answer = await explain_first(provisioned_pair("data", "gp3"), storage_class("gp3"), old)
    assert answer.answer == f"{DRIVER} has not created the volume yet"
    (fact,) = waiting(answer).details
    assert fact.endswith("last renewed 5m 0s ago: it is down")
    assert answer.advice[0].startswith(f"no csi-provisioner is running for {DRIVER}")


async def test_no_driver_at_all() -> None:
    answer = await explain_first(provisioned_pair("data", "gp3"), storage_class("gp3"))
    assert "no csi-provisioner found" in waiting(answer).details[0]


async def test_a_lost_claim_says_that_its_volume_is_gone() -> None:
    mine, _ = bound_pair("data", "pv")
    answer = await explain_first(change(mine, status={"phase": "Lost"}))
    assert answer.answer == "Bound claim has lost its PersistentVolume. Data on the volume is lost!"


async def test_a_claim_that_is_deleted_stays_while_pods_use_it() -> None:
    mine, disk = bound_pair("data", "pv")
    mine = going(change(mine, metadata={"finalizers": ["kubernetes.io/pvc-protection"]}), 30)
    answer = await explain_first(mine, disk, running("web", "data", on="a"), node("a"))
    assert answer.answer == "still used by pod default/web"
    assert waiting(answer).details == ("pod default/web on a: Running",)
    assert answer.advice == ("kubectl delete pod -n default web",)


async def test_any_other_finalizer_is_named_with_whose_it_is() -> None:
    mine, disk = bound_pair("data", "pv")
    held = ["snapshot.storage.kubernetes.io/pvc-as-source-protection", "example.com/mine"]
    answer = await explain_first(going(change(mine, metadata={"finalizers": held}), 30), disk)
    assert [step.who for step in answer.steps] == ["snapshot controller", "the component that added it"]


async def test_growth_waits_for_the_driver_and_then_for_the_node() -> None:
    mine, disk = bound_pair("data", "pv", resources={"requests": {"storage": "2Gi"}})
    answer = await explain_first(mine, disk, event(mine, "VolumeResizeFailed", "no room for 2Gi"))
    assert answer.answer == f"{DRIVER} has not expanded the disk: no room for 2Gi"
    pending = {"type": "FileSystemResizePending", "status": "True", "lastTransitionTime": at(20)}
    status = {"conditions": [pending], "allocatedResourceStatuses": {"storage": "NodeResizePending"}}
    grown = change(disk, spec={"capacity": {"storage": "2Gi"}})
    answer = await explain_first(change(mine, status=status), grown)
    assert answer.answer == "the disk is expanded; its file system is expanded when a pod mounts the volume"
    assert answer.advice == ("start a pod that uses the claim",)


async def test_the_disk_of_an_in_tree_volume_was_expanded_by_the_resizer_of_its_csi_driver() -> None:
    mine, disk = bound_pair("data", "pv", resources={"requests": {"storage": "2Gi"}})
    status = {"allocatedResourceStatuses": {"storage": "NodeResizePending"}}
    resizer = {"volume.kubernetes.io/storage-resizer": DRIVER}
    mine = change(mine, metadata={"annotations": {**mine.metadata.annotations, **resizer}})
    source = {"csi": None, "awsElasticBlockStore": {"volumeID": "vol-1"}}
    grown = change(disk, spec={"capacity": {"storage": "2Gi"}, **source})
    answer = await explain_first(change(mine, status=status), grown)
    assert [step.who for step in answer.steps if step.what.endswith("disk")] == [f"csi-resizer of {DRIVER}"]


async def test_a_file_system_that_cannot_grow_while_it_is_mounted_needs_a_restart_of_the_pod() -> None:
    mine, disk = bound_pair("data", "pv", resources={"requests": {"storage": "2Gi"}})
    pending = {"type": "FileSystemResizePending", "status": "True", "lastTransitionTime": at(20)}
    status = {"conditions": [pending], "allocatedResourceStatuses": {"storage": "NodeResizePending"}}
    grown, user = change(disk, spec={"capacity": {"storage": "2Gi"}}), running("web", "data", on="a")
    answer = await explain_first(change(mine, status=status), grown, user, node("a"))
    assert answer.answer == "the disk is expanded; the kubelet expands its file system for pod web"
    assert answer.advice == ()
    failure = event(change(user, metadata={"uid": "uid-web"}), "VolumeResizeFailed", "ext4 cannot grow")
    answer = await explain_first(change(mine, status=status), grown, user, node("a"), failure)
    assert answer.answer.endswith("which pod web uses: ext4 cannot grow")
    assert answer.advice == (
        "restart the pod, so that the file system is expanded before it is mounted: "
        "kubectl delete pod -n default web",
    )


async def test_a_volume_whose_claim_is_being_deleted_waits_for_the_claim() -> None:
    mine, disk = bound_pair("data", "pv")
    mine = going(change(mine, metadata={"finalizers": ["kubernetes.io/pvc-protection"]}), 30)
    answer = await explain_first(disk, mine, running("web", "data", on="a"), node("a"))
    assert (answer.waits, answer.answer) == (True, "still used by pod default/web")
    assert [step.what for step in answer.steps] == [
        "claim default/data: be deleted",
        f"be released, and then: {disk.spec.persistent_volume_reclaim_policy}",
    ]
    assert answer.advice == ("kubectl delete pod -n default web",)


async def test_a_claim_asks_for_a_volume_by_name() -> None:
    mine = codec.convert(
        PersistentVolumeClaim, {**codec.to_dict(provisioned_pair("data")), "status": {"phase": "Pending"}}
    )
    answer = await explain_first(change(mine, spec={"volumeName": "gone"}))
    assert answer.answer == 'volume "gone" does not exist'
