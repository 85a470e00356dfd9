"""A VolumeAttachment, and a node that has some: what keeps volumes where they are, and for how long."""

from __future__ import annotations

from tests.explain.explain_objects import (
    DRIVER,
    at,
    attachment,
    bound_pair,
    change,
    explain_first,
    going,
    in_use,
    lease,
    node,
    report,
    running,
    waiting,
)
from volplane.api import names
from volplane.rules.waits import Wait, WaitData, WaitReason

ROLE = "persistentvolume-attach-detach-controller"
UNIQUE = names.csi_volume_name(DRIVER, "vol-pv")
FORCE = Wait(WaitReason.FORCE_DETACH, WaitData(node="a"))
GRACE = FORCE.text
OUT = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}


async def test_an_attached_volume_that_a_pod_uses_waits_for_nothing() -> None:
    claim, disk = bound_pair("data", "pv")
    held = attachment("pv", "a")
    answer = await explain_first(held, claim, disk, running("web", "data", on="a"), in_use("a", "pv"))
    assert (answer.waits, answer.answer) == (False, "pv is attached to a")


async def test_a_healthy_node_is_waited_for_as_long_as_it_takes() -> None:
    claim, disk = bound_pair("data", "pv")
    note = report("node/a", UNIQUE, "target is busy")
    answer = await explain_first(attachment("pv", "a"), claim, disk, in_use("a", "pv"), roles=[note])
    assert answer.answer == "a still has the volume mounted"
    step = waiting(answer)
    assert (step.until, step.details) == (
        None,
        ("a lists it in volumesInUse", "kubelet of a: target is busy"),
    )


async def test_a_lost_node_keeps_it_for_the_rest_of_six_minutes() -> None:
    claim, disk = bound_pair("data", "pv")
    there = [claim, disk, in_use("a", "pv", ready=False)]
    answer = await explain_first(attachment("pv", "a"), *there)
    assert answer.answer == GRACE
    assert waiting(answer).until is None  # objects do not show when the controller's timer began
    assert "a has no node.kubernetes.io/out-of-service taint" in waiting(answer).details
    assert "timers, backoff and mounts" in answer.unknown[0]
    answer = await explain_first(
        attachment("pv", "a"), *there, roles=[report(ROLE, UNIQUE, FORCE, since=60, left=300)]
    )
    step = waiting(answer)
    assert step.until is not None
    assert step.since is not None
    assert (step.until - answer.at).total_seconds() == 300
    assert (answer.at - step.since).total_seconds() == 60
    assert "--max-wait-for-unmount: 5m 0s left" in step.details
    assert answer.unknown == ()


async def test_a_word_for_the_node_frees_the_volume() -> None:
    claim, disk = bound_pair("data", "pv")
    tainted = in_use("a", "pv", ready=False, spec={"taints": [{**OUT, "value": "instance-stopped"}]})
    answer = await explain_first(attachment("pv", "a"), claim, disk, tainted)
    assert answer.answer == "nothing uses it on a: it is detached now"
    answer = await explain_first(tainted, claim, disk, attachment("pv", "a"))
    assert (
        "a is tainted node.kubernetes.io/out-of-service=instance-stopped:NoExecute by the fencer, because "
        "its instance is stopped"
    ) in waiting(answer).details
    assert answer.advice == ()


async def test_a_pod_on_a_lost_node_holds_it_without_any_timer() -> None:
    claim, disk = bound_pair("data", "pv")
    old = going(running("old", "data", on="a"), 20)
    answer = await explain_first(attachment("pv", "a"), claim, disk, old, in_use("a", "pv", ready=False))
    assert "pod default/old counts as running there" in answer.answer
    assert "no timer runs while that pod exists" in waiting(answer).details


async def test_the_attacher_does_not_detach() -> None:
    claim, disk = bound_pair("data", "pv")
    error = {"detachError": {"message": "rpc error: disk is busy", "time": at(3)}}
    leaving = going(attachment("pv", "a", status=error), 30)
    answer = await explain_first(
        leaving, claim, disk, node("a"), lease("external-attacher-leader-ebs-csi-aws-com", "")
    )
    assert answer.answer == (
        f"waiting for the external-attacher of {DRIVER} to detach the volume from a: rpc error: disk is busy"
    )
    assert "has no holder" in waiting(answer).details[-1]


async def test_an_attachment_whose_volume_is_gone() -> None:
    answer = await explain_first(going(attachment("pv", "a"), 30), node("a"))
    assert answer.answer == f"{DRIVER} has not detached the volume from a yet"
    assert "volume pv does not exist" in waiting(answer).details[0]
    answer = await explain_first(
        going(attachment("pv", "a"), 30), unread=["persistentvolumes", "nodes", "pods"]
    )
    assert waiting(answer).details == ()  # what may not be read may well be there


# --- nodes


async def test_a_node_that_is_ready_waits_for_nothing() -> None:
    beat = lease("a", "a", namespace="kube-node-lease")
    answer = await explain_first(node("a", spec={"unschedulable": True}), beat)
    assert (answer.waits, answer.answer) == (False, "ready, and cordoned")
    assert answer.steps[0].details == ("last heartbeat 2s ago",)


async def test_a_lost_node_says_whom_it_drives_off_and_what_stays() -> None:
    claim, disk = bound_pair("data", "pv")
    other, used = bound_pair("more", "pv-2")
    key = "node.kubernetes.io/unreachable"
    lost = in_use(
        "a",
        "pv",
        "pv-2",
        ready=False,
        silent=100,
        spec={"taints": [{"key": key, "effect": "NoExecute", "timeAdded": at(100)}]},
    )
    short = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    patient = running("patient", on="a", spec={"tolerations": [{"operator": "Exists"}]})
    leaves = running("leaves", "more", on="a", spec={"tolerations": [short]})
    ends = going(running("ends", on="a"), 10)
    answer = await explain_first(
        lost, claim, disk, other, used, patient, leaves, ends, attachment("pv", "a"), attachment("pv-2", "a"),
        roles=[report(ROLE, UNIQUE, FORCE, since=60, left=300)],
    )  # fmt: skip
    assert answer.answer == "a has been unreachable for 1m 40s"
    _, pods, volumes = answer.steps
    assert pods.details == (
        "pod default/ends: Terminating until the kubelet or an operator ends it",
        "pod default/leaves: evicted in 3m 20s",
        "pod default/patient: stays, it tolerates all taints",
    )
    moved, kept = sorted(volumes.details, key=lambda line: "counts as running" in line)
    assert moved == f"pv: {GRACE} (forced detach in 5m 0s)"
    assert kept.startswith("pv-2: a has been unreachable for 1m 40s, so pod default/leaves counts as running")
    assert any("kubectl delete node a" in line for line in answer.advice)


async def test_a_node_that_answers_and_does_not_unmount_says_so() -> None:
    claim, disk = bound_pair("data", "pv")
    answer = await explain_first(in_use("a", "pv"), claim, disk, attachment("pv", "a"))
    assert answer.answer == "a still has the volume mounted"


# --- volumes


async def test_a_released_volume_is_kept_for_somebody_to_decide() -> None:
    _, disk = bound_pair("data", "pv")
    released = change(disk, spec={"persistentVolumeReclaimPolicy": "Retain"}, status={"phase": "Released"})
    answer = await explain_first(released)
    assert answer.answer == "released; its reclaim policy is Retain; its claim default/data is deleted"
    assert "claimRef" in answer.advice[0]


async def test_a_volume_whose_driver_does_not_delete_it() -> None:
    _, disk = bound_pair("data", "pv")
    released = change(disk, spec={"persistentVolumeReclaimPolicy": "Delete"}, status={"phase": "Released"})
    answer = await explain_first(released, attachment("pv", "a"))
    assert [step.what for step in answer.steps] == ["be detached", "delete the disk (DeleteVolume)"]


async def test_a_volume_that_is_deleted_stays_while_it_is_bound() -> None:
    claim, disk = bound_pair("data", "pv")
    disk = going(change(disk, metadata={"finalizers": ["kubernetes.io/pv-protection"]}), 30)
    answer = await explain_first(disk, claim)
    assert answer.answer == "still bound to claim default/data"
