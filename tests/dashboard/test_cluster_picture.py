"""Where the cluster view shows each volume, and in which state, from objects and reports alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controllers import objects
from tests.explain.explain_objects import bound_pair, change
from volplane.api import codec
from volplane.api.storage import CSINode, VolumeAttachment
from volplane.dashboard.pieces import Tone
from volplane.dashboard.views.cluster_filter import filter_picture
from volplane.dashboard.views.cluster_picture import (
    ClusterFacts,
    ClusterPicture,
    DrawnNode,
    PlacedVolume,
    PlaceState,
    draw,
    natural_order,
)
from volplane.loops.disk_states import DiskState
from volplane.loops.volume_states import ComparedVolume, PendingStep
from volplane.rules.waits import WaitReason


def attachment(volume: str, node: str, **parts: Any) -> VolumeAttachment:
    spec = {"attacher": objects.DRIVER, "nodeName": node, "source": {"persistentVolumeName": volume}}
    metadata = {"name": f"va-{volume}-{node}", **parts.pop("metadata", {})}
    return codec.convert(VolumeAttachment, {"metadata": metadata, "spec": spec, "status": parts})


DELETING = {"deletionTimestamp": "2026-05-04T03:00:00Z"}
CLAIM, VOLUME = bound_pair("data", "pv-1")
POD = change(objects.pod("web", "data", on="n1"), status={"phase": "Running"})
N1, N2 = objects.node("n1"), objects.node("n2", zone="b")


def facts(**more: Any) -> ClusterFacts:
    given: dict[str, Any] = {"nodes": [N1, N2], "pods": [POD], "claims": [CLAIM], "volumes": [VOLUME]}
    return ClusterFacts(**(given | more))


def node(picture: ClusterPicture, name: str) -> DrawnNode:
    return next(each for each in picture.nodes if each.name == name)


def places(picture: ClusterPicture) -> dict[str, PlacedVolume]:
    found = {each.name: volume for each in picture.nodes for volume in each.volumes}
    assert len(picture.storage) <= 1
    return found | dict.fromkeys(("storage",), picture.storage[0]) if picture.storage else found


def mount(actual: str, pending: PendingStep | None = None) -> ComparedVolume:
    name = f"kubernetes.io/csi/{objects.DRIVER}^vol-pv-1"
    return ComparedVolume(name, "pv-1", "csi", "n1", ("default/web",), "mounted", actual, pending)


@pytest.mark.parametrize(
    ("given", "state", "problem"),
    [
        pytest.param({"attached": False}, PlaceState.ATTACHING, "", id="attaching"),
        pytest.param(
            {"attached": False, "attachError": {"message": "no slot"}},
            PlaceState.ATTACH_FAILED,
            "no slot",
            id="attach error",
        ),
        pytest.param({"attached": True, "metadata": DELETING}, PlaceState.DETACHING, "", id="detaching"),
        pytest.param(
            {"attached": True, "metadata": DELETING, "detachError": {"message": "in use"}},
            PlaceState.DETACH_FAILED,
            "in use",
            id="detach error",
        ),
        pytest.param({"attached": True}, PlaceState.IN_USE, "", id="the kubelet was not asked"),
    ],
)
def test_the_state_of_an_attachment_is_the_volumes(
    given: dict[str, Any], state: PlaceState, problem: str
) -> None:
    shown = places(draw(facts(attachments=[attachment("pv-1", "n1", **given)])))
    assert shown.keys() == {"n1"}
    assert (shown["n1"].state, shown["n1"].problem, shown["n1"].pods) == (state, problem, ("web",))


@pytest.mark.parametrize(
    ("mounts", "state"),
    [
        pytest.param([mount("")], PlaceState.ATTACHED, id="nothing yet"),
        pytest.param([mount("attached")], PlaceState.ATTACHED, id="attached"),
        pytest.param([mount("device mounted")], PlaceState.STAGED, id="staged"),
        pytest.param([mount("mounted")], PlaceState.MOUNTED, id="mounted"),
        pytest.param([mount("mount uncertain")], PlaceState.MOUNT_UNCERTAIN, id="uncertain"),
        pytest.param(
            [mount("mounted"), mount("device mounted")], PlaceState.STAGED, id="the pod that is behind"
        ),
        pytest.param(
            [mount("attached", PendingStep("bad superblock", WaitReason.RETRY))],
            PlaceState.MOUNT_FAILED,
            id="failing",
        ),
        pytest.param([], PlaceState.ATTACHED, id="the kubelet does not know it"),
    ],
)
def test_the_kubelet_tells_how_far_an_attached_volume_is(
    mounts: list[ComparedVolume], state: PlaceState
) -> None:
    picture = draw(facts(attachments=[attachment("pv-1", "n1", attached=True)], kubelets={"n1": mounts}))
    assert places(picture)["n1"].state is state


def test_a_volume_that_a_pod_needs_elsewhere_is_at_both_places() -> None:
    moved = change(objects.pod("web", "data", on="n2"), status={"phase": "Pending"})
    waits = PendingStep("it is attached to n1", WaitReason.NOT_ATTACHED)
    picture = draw(
        facts(
            pods=[moved],
            attachments=[attachment("pv-1", "n1", attached=True)],
            kubelets={"n1": [mount("mounted")], "n2": [mount("", waits)]},
        )
    )
    assert {name: volume.state for name, volume in places(picture).items()} == {
        "n1": PlaceState.MOUNTED,
        "n2": PlaceState.WAITING,
    }
    assert places(picture)["n2"].problem == "it is attached to n1"


def test_a_volume_in_a_pod_that_has_the_name_of_a_volume_is_another_one() -> None:
    directory = ComparedVolume(
        "kubernetes.io/empty-dir/u-pv-1", "pv-1", "", "n2", ("default/x",), "mounted", "mounted"
    )
    picture = draw(facts(pods=[], kubelets={"n1": [], "n2": [directory]}))
    assert places(picture).keys() == {"storage"}
    nfs = change(VOLUME, spec={"csi": None, "nfs": {"server": "s", "path": "/"}})
    own = ComparedVolume("kubernetes.io/nfs/pv-1", "pv-1", "", "n1", ("default/web",), "mounted", "mounted")
    shown = places(draw(facts(volumes=[nfs], kubelets={"n1": [own], "n2": [directory]})))
    assert {node: volume.state for node, volume in shown.items()} == {"n1": PlaceState.MOUNTED}


def test_a_volume_without_attachment_is_where_it_is_mounted() -> None:
    assert places(draw(facts()))["n1"].state is PlaceState.IN_USE
    assert places(draw(facts(kubelets={"n1": [mount("mounted")]})))["n1"].state is PlaceState.MOUNTED
    assert places(draw(facts(kubelets={"n1": []})))["n1"].state is PlaceState.ATTACHING


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({"phase": "Bound"}, PlaceState.NOT_ATTACHED),
        ({"phase": "Available"}, PlaceState.AVAILABLE),
        ({"phase": "Released"}, PlaceState.RELEASED),
        ({"phase": "Failed", "message": "busy"}, PlaceState.FAILED),
    ],
)
def test_a_volume_on_no_node_is_in_storage(status: dict[str, Any], state: PlaceState) -> None:
    shown = places(draw(facts(pods=[], volumes=[change(VOLUME, status=status)])))
    assert shown["storage"].state is state
    assert shown["storage"].problem == status.get("message", "")


def test_a_volume_that_is_deleted_says_so() -> None:
    leaving = change(VOLUME, metadata=DELETING)
    assert places(draw(facts(pods=[], volumes=[leaving])))["storage"].state is PlaceState.DELETING


@pytest.mark.parametrize(
    ("change_of_claim", "state"),
    [
        ({}, PlaceState.PROVISIONING),
        ({"metadata": DELETING}, PlaceState.DELETING),
        ({"status": {"phase": "Lost"}, "spec": {"volumeName": "gone"}}, PlaceState.LOST),
    ],
)
def test_a_claim_without_a_volume_is_shown_too(change_of_claim: dict[str, Any], state: PlaceState) -> None:
    waiting = change(objects.claim("later", "5Gi", metadata={"uid": "u2"}), **change_of_claim)
    shown = draw(ClusterFacts(nodes=[N1], claims=[waiting])).storage
    assert [(each.title, each.size, each.state) for each in shown] == [("later", "5Gi", state)]


def test_a_claim_of_the_same_name_is_not_the_volumes_claim() -> None:
    newer = change(CLAIM, metadata={"uid": "another"}, spec={"volumeName": ""})
    shown = draw(facts(claims=[newer], attachments=[attachment("pv-1", "n2", attached=True)]))
    assert node(shown, "n2").volumes[0].pods == ()
    assert not node(shown, "n1").volumes


def test_nodes_stand_in_their_zones_in_natural_order() -> None:
    names = ["worker-10", "worker-2", "worker-1"]
    nodes = [*(objects.node(name) for name in names), objects.node("z", zone="b")]
    picture = draw(ClusterFacts(nodes=nodes))
    assert [(zone.name, [n.name for n in zone.nodes]) for zone in picture.zones] == [
        ("a", ["worker-1", "worker-2", "worker-10"]),
        ("b", ["z"]),
    ]
    assert natural_order("9") < natural_order("a") < natural_order("a0")


def test_a_lost_node_is_seen_and_what_it_has_is_not_known() -> None:
    lost = objects.node("n1", ready=False)
    picture = draw(facts(nodes=[lost, N2], attachments=[attachment("pv-1", "n1", attached=True)]))
    shown = node(picture, "n1")
    assert shown.problem == "unreachable"
    assert shown.volumes[0].state is PlaceState.NOT_KNOWN


def test_a_node_that_is_not_ready_says_why() -> None:
    conditions = [{"type": "Ready", "status": "False", "message": "disk full"}]
    shown = node(draw(facts(nodes=[change(N1, status={"conditions": conditions})])), "n1")
    assert shown.problem == "not ready: disk full"


def test_fenced_and_cordoned_nodes_are_told_apart() -> None:
    taint = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute", "value": "nodeshutdown"}
    fenced = objects.node("n1", ready=False, taints=[taint])
    cordoned = objects.node("n2", unschedulable=True)
    picture = draw(facts(nodes=[fenced, cordoned]))
    assert (node(picture, "n1").is_fenced, node(picture, "n1").is_cordoned) == (True, False)
    assert (node(picture, "n2").is_fenced, node(picture, "n2").is_cordoned) == (False, True)


def test_a_node_that_was_deleted_is_shown_while_it_has_volumes() -> None:
    picture = draw(facts(nodes=[N2], pods=[], attachments=[attachment("pv-1", "n1", attached=True)]))
    shown = node(picture, "n1")
    assert shown.is_missing
    assert shown.problem == "no such node"


def test_attach_limits_count_the_attachments_of_a_driver() -> None:
    driver = {"name": objects.DRIVER, "nodeID": "i", "topologyKeys": [], "allocatable": {"count": 28}}
    csi_node = codec.convert(CSINode, {"metadata": {"name": "n1"}, "spec": {"drivers": [driver]}})
    picture = draw(facts(csi_nodes=[csi_node], attachments=[attachment("pv-1", "n1", attached=True)]))
    (limit,) = node(picture, "n1").limits
    assert (limit.driver, limit.used, limit.limit) == (objects.DRIVER, 1, 28)


def test_disks_are_joined_with_their_volumes_and_the_others_are_seen() -> None:
    disks = [
        DiskState("vol-pv-1", "a", 1, "gp3", "in-use", "n1"),
        DiskState("vol-lost", "a", 4, "gp3", "available"),
    ]
    picture = draw(facts(disks=disks))
    assert [(d.disk.id, d.subject) for d in picture.disks] == [
        ("vol-lost", ""),
        ("vol-pv-1", "pvc/default/data"),
    ]


@pytest.mark.parametrize(
    ("parts", "state", "tone"),
    [
        ({"status": {"phase": "Running"}}, "Running", Tone.GOOD),
        ({"status": {"phase": "Pending"}}, "Pending", Tone.BUSY),
        ({"metadata": DELETING}, "Terminating", Tone.BUSY),
        (
            {
                "status": {
                    "phase": "Running",
                    "containerStatuses": [
                        {"name": "c", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
                    ],
                }
            },
            "CrashLoopBackOff",
            Tone.BAD,
        ),
    ],
)
def test_a_pod_has_one_word_for_its_state(parts: dict[str, Any], state: str, tone: Tone) -> None:
    (shown,) = node(draw(facts(pods=[change(POD, **parts)])), "n1").pods
    assert (shown.state, shown.tone) == (state, tone)


def test_ended_pods_hold_no_volume() -> None:
    picture = draw(facts(pods=[change(POD, status={"phase": "Succeeded"})]))
    assert places(picture).keys() == {"storage"}
    assert not node(picture, "n1").pods


@pytest.mark.parametrize(
    ("text", "nodes", "volumes"),
    [
        ("", ["n1", "n2"], ["data", "other"]),
        ("DATA", ["n1"], ["data"]),
        ("web", ["n1"], ["data"]),
        ("n1", ["n1"], ["data"]),
        ("pv-2", [], ["other"]),
        ("available", [], []),
        ("nothing like it", [], []),
    ],
)
def test_a_filter_shows_what_has_the_text_in_a_name_or_state(
    text: str, nodes: list[str], volumes: list[str]
) -> None:
    other = bound_pair("other", "pv-2")
    picture = filter_picture(draw(facts(claims=[CLAIM, other[0]], volumes=[VOLUME, other[1]])), text)
    assert [each.name for each in picture.nodes] == nodes
    on_nodes = [volume.title for each in picture.nodes for volume in each.volumes]
    assert [*on_nodes, *(volume.title for volume in picture.storage)] == volumes
