"""In-tree disks in the scheduler: limits of their CSI driver, disks that pods share, zones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controllers.objects import DRIVER, node, pod, volume
from tests.scheduler.test_scheduler_plan import claim, make_snapshot
from volplane.api import codec
from volplane.api.core import Node, PersistentVolume, Pod
from volplane.api.storage import CSINode
from volplane.scheduler.node_cache import NodeCache, NodeCacheOverlay, compute_pod_usage
from volplane.scheduler.plan import Placement, Unschedulable, decide

ZONE, CSI_ZONE = "topology.kubernetes.io/zone", "topology.ebs.csi.aws.com/zone"


def ebs(disk: str, name: str = "data") -> dict[str, Any]:
    return {"name": name, "awsElasticBlockStore": {"volumeID": disk}}


def iscsi(iqn: str, *, read_only: bool = False) -> dict[str, Any]:
    return {
        "name": "data",
        "iscsi": {"targetPortal": "10.0.0.1", "iqn": iqn, "lun": 0, "readOnly": read_only},
    }


def pod_with(name: str, *volumes: dict[str, Any], on: str = "") -> Pod:
    return pod(name, on=on, volumes=list(volumes))


def limited(name: str, limit: int) -> CSINode:
    driver = {"name": DRIVER, "nodeID": name, "allocatable": {"count": limit}}
    return codec.convert(CSINode, {"metadata": {"name": name}, "spec": {"drivers": [driver]}})


def in_tree(name: str, **more: Any) -> PersistentVolume:
    return volume(name, csi=None, awsElasticBlockStore={"volumeID": f"aws:///vol-{name}"}, **more)


def node_in(name: str, zone: str) -> Node:
    labels = {"kubernetes.io/hostname": name, ZONE: zone, CSI_ZONE: zone}
    status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}
    return codec.convert(Node, {"metadata": {"name": name, "labels": labels}, "status": status})


def refusal(wanted: Pod, *around: Any, **more: Any) -> str:
    decision = decide(wanted, make_snapshot(*around, **more))
    return decision.message if isinstance(decision, Unschedulable) else ""


def test_in_tree_volumes_count_for_the_limit_of_their_driver() -> None:
    there = pod_with("there", ebs("vol-1"), on="n1")
    around = (node("n1"), there, limited("n1", 1))
    assert "node(s) exceed max volume count" in refusal(pod_with("new", ebs("vol-2")), *around)
    bound = (claim("data", "pv"), in_tree("pv"))
    assert "node(s) exceed max volume count" in refusal(pod("new", "data"), *around, *bound)
    assert not refusal(pod_with("new", ebs("vol-2")), node("n1"), there, limited("n1", 2))


def test_a_disk_that_is_attached_already_counts_once() -> None:
    around = (node("n1"), limited("n1", 1), in_tree("pv"), claim("data", "pv"), pod("old", "data", on="n1"))
    assert not refusal(pod("new", "data"), *around, attached={"n1": ["pv"]})


@pytest.mark.parametrize(
    ("wanted", "there", "clash"),
    [
        (ebs("vol-1"), ebs("vol-1"), True),
        (ebs("vol-1"), ebs("vol-2"), False),
        (ebs("vol-1"), {"name": "x", "emptyDir": {}}, False),
        (iscsi("iqn.a"), iscsi("iqn.a"), True),
        (iscsi("iqn.a", read_only=True), iscsi("iqn.a"), True),
        (iscsi("iqn.a", read_only=True), iscsi("iqn.a", read_only=True), False),
        (iscsi("iqn.a"), iscsi("iqn.b"), False),
        (iscsi("iqn.a"), ebs("vol-1"), False),
        (ebs("vol-1"), iscsi("iqn.a"), False),
    ],
)
def test_two_pods_of_a_node_do_not_share_a_disk(
    wanted: dict[str, Any], there: dict[str, Any], clash: bool
) -> None:
    why = refusal(pod_with("new", wanted), node("n1"), pod_with("old", there, on="n1"))
    assert ("node(s) had no available disk" in why) is clash


def test_another_node_takes_the_pod() -> None:
    around = make_snapshot(node("n1"), node("n2"), pod_with("old", ebs("vol-1"), on="n1"))
    decision = decide(pod_with("new", ebs("vol-1")), around)
    assert isinstance(decision, Placement)
    assert decision.node == "n2"


def test_a_zone_label_of_a_volume_decides_about_its_node() -> None:
    volume_of_b = in_tree("pv", metadata={"name": "pv", "labels": {ZONE: "b"}})
    around = make_snapshot(node_in("n1", "a"), node_in("n2", "b"), claim("data", "pv"), volume_of_b)
    decision = decide(pod("p", "data"), around)
    assert isinstance(decision, Placement)
    assert decision.node == "n2"
    why = refusal(pod("p", "data"), node_in("n1", "a"), claim("data", "pv"), volume_of_b)
    assert "node(s) didn't match PersistentVolume's node affinity" in why


def test_the_node_cache_forgets_the_disks_of_a_pod_that_is_gone() -> None:
    cache = NodeCache()
    cache.put_node(node("n1"))
    cache.put_pod(pod_with("a", ebs("vol-1"), on="n1"), "n1")
    tried = NodeCacheOverlay(cache)
    tried.add_pod(compute_pod_usage(pod_with("b", ebs("vol-2"))), "n1")
    assert set(tried.node_info("n1").inline_disks) == {(DRIVER, "vol-1"), (DRIVER, "vol-2")}
    cache.drop_pod("default/a")
    assert not cache.node_info("n1").inline_disks
