"""A pod that waits: for a node, its volumes, its containers, or its end."""

from __future__ import annotations

import pytest

from tests.controllers.objects import claim as made
from tests.controllers.objects import storage_class
from tests.explain.explain_objects import (
    DRIVER,
    at,
    attachment,
    bound_pair,
    change,
    event,
    explain_first,
    going,
    in_use,
    node,
    pod,
    registered_node,
    report,
    running,
    waiting,
)
from volplane.api import names
from volplane.rules.waits import Wait, WaitData, WaitReason

CREATING = {"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}
MOUNTING = {"phase": "Pending", "containerStatuses": [CREATING]}
UNIQUE = names.csi_volume_name(DRIVER, "vol-pv")
OUT = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}


async def test_a_pod_that_runs_waits_for_nothing() -> None:
    answer = await explain_first(running("web", on="a"), node("a"))
    assert (answer.waits, answer.answer) == (False, "running on a, and ready")


async def test_every_node_refuses_it_by_a_filter_of_its_own() -> None:
    claim, disk = bound_pair("data", "pv")
    zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["b"]}
    terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}
    disk = change(disk, spec={"nodeAffinity": terms})
    tainted = node("tainted", spec={"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]})
    answer = await explain_first(
        pod("web", "data", spec={"containers": [{"name": "c", "image": "x"}]}),
        claim,
        disk,
        node("far"),
        node("cordoned", spec={"unschedulable": True}),
        tainted,
    )
    assert answer.answer.startswith("0/3 nodes are available: ")
    assert waiting(answer).details == (
        "cordoned: node(s) were unschedulable [NodeUnschedulable]",
        "far: node(s) didn't match PersistentVolume's node affinity "
        "(pv is in topology.kubernetes.io/zone In b) [VolumeBinding]",
        "tainted: node(s) had untolerated taint(s) (gpu=yes:NoSchedule) [TaintToleration]",
    )


async def test_what_a_node_is_short_of_is_said_with_figures() -> None:
    hungry = {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "64"}}}]}
    answer = await explain_first(pod("web", spec=hungry), node("a"))
    assert waiting(answer).details == (
        "a: Insufficient cpu (cpu: requests 64000m, 4000m free) [NodeResourcesFit]",
    )


async def test_a_pod_without_its_claim_says_so_first() -> None:
    answer = await explain_first(pod("web", "nowhere"), node("a"))
    assert answer.answer == "claim default/nowhere does not exist"
    assert answer.advice == ("create claim nowhere in namespace default",)


async def test_a_pod_that_fits_waits_for_the_scheduler() -> None:
    answer = await explain_first(pod("web"), node("a"))
    assert answer.answer == "the pod fits on a; the scheduler has not bound it yet"


async def test_gates_hold_a_pod_back() -> None:
    gated = pod("web", spec={"schedulingGates": [{"name": "example.com/ready"}]})
    assert (await explain_first(gated, node("a"))).answer == "scheduling gates: example.com/ready"


async def test_the_scheduler_waits_for_a_volume_that_is_being_made() -> None:
    notes = {"volume.kubernetes.io/selected-node": "a"}
    mine = made("data", cls="gp3", metadata={"annotations": notes, "creationTimestamp": at(20)})
    answer = await explain_first(
        pod("web", "data"), mine, storage_class("gp3", "WaitForFirstConsumer"), node("a"), node("b")
    )
    assert answer.answer == f"{DRIVER} has not created the volume yet"
    assert "VolumeBinding" in [step.reason for step in answer.steps]


# --- volumes


async def test_an_exclusive_volume_is_still_on_a_node_that_does_not_answer() -> None:
    claim, disk = bound_pair("data", "pv")
    there = [claim, disk, attachment("pv", "a"), node("b"), *registered_node("a", "b")]
    lost = in_use("a", "pv", ready=False)
    mine = pod("new", "data", on="b", status=MOUNTING)
    old = going(running("old", "data", on="a"), 20)
    answer = await explain_first(mine, old, lost, *there)
    assert answer.answer == (
        "cannot attach the volume to b: it is attached to a. a has been unreachable for 1m 0s, so pod "
        "default/old counts as running there until a is ready again, is deleted, or is tainted "
        "out-of-service"
    )
    assert "kubectl delete node a" in " ".join(answer.advice)
    assert "out-of-service" in " ".join(answer.advice)
    assert [step.what for step in answer.steps][-2:] == ["mount on b", "start its containers"]
    # The old pod is gone by force: now the controller's six minutes run.
    answer = await explain_first(mine, lost, *there)
    assert answer.answer.startswith(
        "cannot attach the volume to b: it is attached to a. a is not ready and may still have the"
    )
    assert "forced detach at most 6m 0s after the last pod left (--max-wait-for-unmount)" in (
        waiting(answer).details
    )
    force = Wait(WaitReason.FORCE_DETACH, WaitData(node="a"))
    note = report("persistentvolume-attach-detach-controller", UNIQUE, force, since=64, left=296)
    proof = Wait(WaitReason.INSTANCE_NOT_STOPPED, WaitData(node="a", names=("i-1",)))
    fencer = report("node-fencer", "a", proof)
    answer = await explain_first(mine, lost, *there, roles=[note, fencer])
    step = waiting(answer)
    assert step.until is not None
    assert (step.ends, (step.until - answer.at).total_seconds()) == ("forced detach", 296)
    assert f"not fenced: {proof.text}" in step.details


async def test_two_pods_that_run_cannot_share_an_exclusive_volume() -> None:
    claim, disk = bound_pair("data", "pv")
    mine = pod("new", "data", on="b", status=MOUNTING)
    old = running("old", "data", on="a")
    answer = await explain_first(mine, old, claim, disk, attachment("pv", "a"), in_use("a", "pv"), node("b"))
    assert answer.answer == "cannot attach the volume to b: it is attached to a. pod default/old on a uses it"


async def test_the_attacher_says_why_it_does_not_attach() -> None:
    claim, disk = bound_pair("data", "pv")
    error = {"attachError": {"message": "rpc error: no slots", "time": at(3)}}
    asked = attachment("pv", "a", attached=False, status=error)
    answer = await explain_first(pod("web", "data", on="a", status=MOUNTING), claim, disk, asked, node("a"))
    assert answer.answer == (
        f"waiting for the external-attacher of {DRIVER} to attach the volume to a: rpc error: no slots"
    )


async def test_the_attachers_own_plan_says_what_it_needs() -> None:
    claim, disk = bound_pair("data", "pv")
    asked = attachment("pv", "a", attached=False)
    answer = await explain_first(pod("web", "data", on="a", status=MOUNTING), claim, disk, asked, node("a"))
    assert waiting(answer).reason == "Attach"
    assert 'csi-attacher: csinode.storage.k8s.io "a" not found' in waiting(answer).details


async def test_an_attached_volume_has_still_to_be_told_to_the_node() -> None:
    claim, disk = bound_pair("data", "pv")
    here = in_use("a", "pv", attached=False)
    answer = await explain_first(
        pod("web", "data", on="a", status=MOUNTING), claim, disk, attachment("pv", "a"), here
    )
    assert answer.answer == "attached, but status.volumesAttached of a does not list it yet"


async def test_the_kubelet_has_not_begun() -> None:
    claim, disk = bound_pair("data", "pv")
    listed = {"volumesAttached": [{"name": UNIQUE, "devicePath": ""}]}
    web = pod("web", "data", on="a", status=MOUNTING)
    answer = await explain_first(
        web, claim, disk, attachment("pv", "a"), node("a", status=listed), *registered_node("a")
    )
    assert answer.answer.startswith("a does not list pv in volumesInUse yet")


async def test_a_driver_that_is_not_on_the_node() -> None:
    claim, disk = bound_pair("data", "pv")
    web = pod("web", "data", on="a", status=MOUNTING)
    answer = await explain_first(web, claim, disk, attachment("pv", "a"), in_use("a", "pv"))
    assert answer.answer.startswith(f"driver {DRIVER} is not registered on a")


@pytest.mark.parametrize("source", ["event", "role"])
async def test_a_mount_that_fails_is_reported_by_the_kubelet(source: str) -> None:
    claim, disk = bound_pair("data", "pv")
    web = pod("web", "data", on="a", status=MOUNTING)
    there = [claim, disk, attachment("pv", "a"), in_use("a", "pv"), *registered_node("a")]
    failed = 'MountVolume.MountDevice failed for volume "pv" : rpc error: bad superblock'
    if source == "event":
        answer = await explain_first(web, *there, event(web, "FailedMount", failed))
        assert answer.answer == failed
        assert waiting(answer).details == ("event FailedMount, 3 times, last 5s ago",)
    else:
        note = report("node/a", UNIQUE, "rpc error: bad superblock", left=8)
        answer = await explain_first(web, *there, roles=[note])
        assert answer.answer == "rpc error: bad superblock"
        assert waiting(answer).ends == "retried"


async def test_volumes_that_are_no_claims_are_known_by_events_alone() -> None:
    web = pod("web", on="a", status=MOUNTING)
    failed = 'MountVolume.SetUp failed for volume "d" : configmap "nowhere" not found'
    assert (await explain_first(web, node("a"), event(web, "FailedMount", failed))).answer == failed


# --- containers


@pytest.mark.parametrize(
    ("state", "answer", "advice"),
    [
        (
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}},
            "ImagePullBackOff: Back-off pulling image",
            "check that the image exists and may be pulled: busybox",
        ),
        (
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                "lastState": {"terminated": {"exitCode": 3, "finishedAt": at(9)}},
                "restartCount": 4,
            },
            "CrashLoopBackOff: back-off 40s",
            "kubectl logs -n default web -c c --previous",
        ),
        (
            {"state": {"running": {"startedAt": at(9)}}},
            "running, but not ready: its readiness or startup probe has not succeeded",
            "kubectl logs -n default web -c c",
        ),
    ],
    ids=["image", "crash loop", "probe"],
)
async def test_a_container_that_does_not_get_ready(
    state: dict[str, object], answer: str, advice: str
) -> None:
    status = {"phase": "Pending", "containerStatuses": [{"name": "c", "image": "busybox", **state}]}
    result = await explain_first(pod("web", on="a", status=status), node("a"))
    assert (result.answer, result.advice) == (answer, (advice,))


async def test_an_init_container_has_to_end_first_unless_it_is_there_to_stay() -> None:
    state = {"name": "i", "started": True, "state": {"running": {"startedAt": at(9)}}}
    status = {"phase": "Pending", "initContainerStatuses": [state], "containerStatuses": [CREATING]}
    first = {"name": "i", "image": "x"}
    result = await explain_first(
        pod("web", on="a", status=status, spec={"initContainers": [first]}), node("a")
    )
    assert (result.answer, waiting(result).what) == ("running; it has to finish first", "init container i")
    stays = {**first, "restartPolicy": "Always"}
    result = await explain_first(
        pod("web", on="a", status=status, spec={"initContainers": [stays]}), node("a")
    )
    assert waiting(result).what == "be ready"


# --- lost nodes, and the end


async def test_a_pod_on_a_node_that_does_not_answer_is_evicted_when_its_toleration_ends() -> None:
    key = "node.kubernetes.io/unreachable"
    taint = {"key": key, "effect": "NoExecute", "timeAdded": at(100)}
    tolerates = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    lost = node("a", ready=False, silent=100, spec={"taints": [taint]})
    answer = await explain_first(running("web", on="a", spec={"tolerations": [tolerates]}), lost)
    assert answer.answer == "a has been unreachable for 1m 40s; the state of the pod is not known"
    evicted = answer.steps[-1]
    assert evicted.until is not None
    assert (evicted.ends, (evicted.until - answer.at).total_seconds()) == ("deleted", 200)


async def test_a_pod_that_goes_waits_for_its_lost_node() -> None:
    web = going(running("web", on="a"), 40)
    answer = await explain_first(web, node("a", ready=False))
    assert answer.answer.endswith("only its kubelet can report that the pod's containers have stopped")
    assert any("kubectl delete node a" in line for line in answer.advice)
    answer = await explain_first(web, node("a", ready=False, spec={"taints": [OUT]}))
    assert answer.answer == "node a is out of service: the pod is removed now"


async def test_a_pod_that_goes_waits_for_its_containers_and_then_for_its_volumes() -> None:
    web = going(running("web", "data", on="a"), 5, grace=30)
    answer = await explain_first(web, node("a"))
    assert answer.answer == "container c is still running"
    assert waiting(answer).until is not None
    ended = {"name": "c", "state": {"terminated": {"exitCode": 0}}}
    web = change(web, status={"containerStatuses": [ended]})
    others = report("node/a", names.csi_volume_name(DRIVER, "vol-b"), "not attached to the node yet")
    note = report("node/a", UNIQUE, "target is busy", left=4)
    answer = await explain_first(web, node("a"), *bound_pair("data", "pv"), roles=[others, note])
    assert answer.answer == "vol-pv: target is busy, retried in 4s"
    assert answer.steps[0].what == "its containers have stopped"


# --- in-tree volumes

EBS_VOLUME = {"volumes": [{"name": "v", "awsElasticBlockStore": {"volumeID": "aws:///vol-pv"}}]}
INLINE_SPEC = {"csi": {"driver": DRIVER, "volumeHandle": "vol-pv"}, "accessModes": ["ReadWriteOnce"]}


async def test_an_in_tree_volume_of_a_pod_is_attached_first() -> None:
    web = pod("web", on="a", spec=EBS_VOLUME, status=MOUNTING)
    answer = await explain_first(web, node("a"), *registered_node("a"))
    assert waiting(answer).what == f"attach {DRIVER}-vol-pv to a"
    refused = {"attachError": {"message": "InvalidVolume.NotFound"}}
    held = change(attachment("pv", "a", attached=False), spec={"source": {"inlineVolumeSpec": INLINE_SPEC}})
    answer = await explain_first(
        web, node("a"), change(held, status={"attached": False, **refused}), *registered_node("a")
    )
    assert waiting(answer).why.endswith(": InvalidVolume.NotFound")
    assert waiting(answer).who == f"csi-attacher of {DRIVER}"


async def test_then_it_is_mounted() -> None:
    web = pod("web", on="a", spec=EBS_VOLUME, status=MOUNTING)
    held = change(attachment("pv", "a"), spec={"source": {"inlineVolumeSpec": INLINE_SPEC}})
    answer = await explain_first(web, in_use("a", "pv"), held, *registered_node("a"))
    assert waiting(answer).what.startswith(f"stage and mount {DRIVER}-vol-pv")


async def test_a_volume_that_has_no_valid_id_is_explained_by_its_event() -> None:
    bad = {"volumes": [{"name": "v", "awsElasticBlockStore": {"volumeID": "aws://x"}}]}
    web = pod("web", on="a", spec=bad, status=MOUNTING)
    said = 'volume v: awsElasticBlockStore.volumeID: "aws://x" is not a volume id'
    answer = await explain_first(web, node("a"), event(web, "FailedMount", said))
    assert waiting(answer).why == said


async def test_an_attached_inline_volume_has_no_name() -> None:
    held = change(attachment("pv", "a"), spec={"source": {"inlineVolumeSpec": INLINE_SPEC}})
    answer = await explain_first(held, node("a"))
    assert answer.answer == "an inline volume is attached to a"
