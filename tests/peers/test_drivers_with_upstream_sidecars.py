"""Upstream's sidecars drive our drivers, in place of those of their deployments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.peers import lifecycle, peer_cluster
from tests.peers.peer_cluster import BUILT_IN, PeerCluster
from tests.support import in_tree
from volplane.api import quantity

PEERS = ("kubectl", "csi-provisioner", "csi-resizer", "csi-snapshotter", "snapshot-controller")
pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer(*PEERS)]

EBS = "ebs.csi.aws.com"
# The controller services' directories; the node services have the drivers' names.
DISKS = "ebs-controller"
SHARES = "efs-controller"


@pytest.fixture(scope="module")
def cluster() -> Iterator[PeerCluster]:
    with peer_cluster.run_peer_cluster(*peer_cluster.without_snapshot_controller(), nodes=2) as cluster:
        for driver, directory in (("ebs", DISKS), ("efs", SHARES)):
            serve_controller(cluster, driver, directory)
        cluster.roles("csi-provisioner", "rbac.yaml")
        cluster.roles("csi-resizer", "rbac.yaml")
        cluster.roles("csi-snapshotter", "rbac-csi-snapshotter.yaml")
        cluster.roles("snapshot-controller", "rbac-snapshot-controller.yaml")
        flags = ("--default-fstype=ext4", "--enable-capacity", "--capacity-ownerref-level=0")
        cluster.sidecar("csi-provisioner", DISKS, *flags, account="csi-provisioner")
        cluster.sidecar("csi-provisioner", SHARES, account="csi-provisioner", name="efs-provisioner")
        cluster.attacher(DISKS)
        cluster.sidecar("csi-resizer", DISKS, account="csi-resizer")
        cluster.sidecar("csi-snapshotter", DISKS, account="csi-snapshotter")
        cluster.snapshot_controller()
        cluster.apply(
            peer_cluster.storage_class(
                "ebs", EBS, volumeBindingMode="WaitForFirstConsumer", allowVolumeExpansion=True
            ),
            peer_cluster.storage_class("at-once", EBS),
            # Mounted, ext4 grows only for a process with CAP_SYS_RESOURCE; xfs for every root.
            peer_cluster.storage_class(
                "xfs", EBS, allowVolumeExpansion=True, parameters={"csi.storage.k8s.io/fstype": "xfs"}
            ),
            peer_cluster.snapshot_class("ebs", EBS),
            in_tree.storage_class("in-tree"),
        )
        yield cluster


def serve_controller(cluster: PeerCluster, driver: str, directory: str) -> None:
    """The driver's controller service by itself: its deployment would bring our sidecars."""
    name = f"{driver}-csi-controller"
    cluster.delete("deployment", name, "-n", "kube-system")
    cluster.gone("pods", "-n", "kube-system", "-l", f"app={name}")
    flags = ["controller", "--endpoint=unix:///csi/csi.sock"]
    plugin = peer_cluster.container(f"{BUILT_IN}{driver}-plugin", flags, mounts={"/csi": "socket"})
    cluster.account(directory, f"volplane:use-{driver}-images")
    cluster.run(directory, [plugin], {"socket": peer_cluster.plugin_directory(directory)}, account=directory)


def test_a_disk_is_made_and_removed(cluster: PeerCluster) -> None:
    lifecycle.provision(cluster, "at-once", EBS)


def test_the_space_that_is_left_is_published(cluster: PeerCluster) -> None:
    found = cluster.wait("it is told for the class", lambda: _capacities(cluster, "ebs"))
    for capacity in found:
        assert quantity.value(capacity["capacity"]) > 0
        zone = capacity["nodeTopology"]["matchLabels"]["topology.ebs.csi.aws.com/zone"]
        assert zone == "us-east-1a"
        assert [owner["name"] for owner in capacity["metadata"]["ownerReferences"]] == ["csi-provisioner"]


def _capacities(cluster: PeerCluster, kind: str) -> list[Any]:
    return [c for c in cluster.up.items("csistoragecapacities") if c["storageClassName"] == kind]


def test_a_disk_moves_to_another_node(cluster: PeerCluster) -> None:
    lifecycle.mount(cluster, "ebs", node="worker-2")


@pytest.mark.peer("csi-attacher")
def test_the_attacher_attaches_and_detaches(cluster: PeerCluster) -> None:
    lifecycle.attach(cluster, "ebs", EBS, "external-attacher/ebs-csi-aws-com")


def test_a_disk_in_use_grows(cluster: PeerCluster) -> None:
    lifecycle.grow(cluster, "xfs")


def test_a_claim_of_an_in_tree_class_gets_the_volume_of_our_provisioner(
    cluster: PeerCluster,
) -> None:
    cluster.claim("translated", "in-tree", "4Gi")
    cluster.pod("in-tree-writer", lifecycle.WRITE, {lifecycle.DATA: "translated"})
    in_tree.check_claim(cluster.up.get("pvc", "translated"))
    name = cluster.bound("translated")["metadata"]["name"]
    cluster.wait("it is marked", lambda: "migrated-to" in str(cluster.up.get("pv", name)["metadata"]))
    disk = in_tree.check_volume(cluster.up.get("pv", name))
    more = '{"spec":{"resources":{"requests":{"storage":"6Gi"}}}}'
    cluster.up.kubectl("patch", "pvc", "translated", "--type=merge", "-p", more)
    cluster.wait(
        "the claim has grown",
        lambda: cluster.up.get("pvc", "translated")["status"]["capacity"]["storage"] == "6Gi",
    )
    cluster.delete("pod", "in-tree-writer")
    cluster.pod("in-tree-reader", lifecycle.READ, {lifecycle.DATA: "translated"}, node="worker-2")
    lifecycle.remove(cluster, "in-tree-reader", "translated")
    cluster.gone("pv", name)
    assert disk not in str(cluster.up.aws("describe-volumes"))


def test_a_snapshot_becomes_ready_and_is_restored(cluster: PeerCluster) -> None:
    lifecycle.restore(cluster, "ebs")


def test_a_disk_is_cloned(cluster: PeerCluster) -> None:
    lifecycle.clone(cluster, "ebs")


def test_a_raw_device_is_given_to_a_pod(cluster: PeerCluster) -> None:
    lifecycle.block(cluster, "ebs")


def test_two_nodes_share_a_directory(cluster: PeerCluster) -> None:
    cluster.claim("shared", "efs", accessModes=["ReadWriteMany"])
    cluster.pod("share-writer", lifecycle.WRITE, {lifecycle.DATA: "shared"}, node="worker-1")
    cluster.pod("share-reader", lifecycle.READ, {lifecycle.DATA: "shared"}, node="worker-2")
    volume = cluster.bound("shared")
    assert volume["spec"]["csi"]["driver"] == "efs.csi.aws.com"
    assert lifecycle.attachments(cluster, volume["metadata"]["name"]) == []  # shares are not attached
    lifecycle.remove(cluster, "share-writer", "")
    lifecycle.remove(cluster, "share-reader", "shared")
    cluster.gone("pv", volume["metadata"]["name"])


def test_nothing_is_left_and_nobody_was_refused_anything(cluster: PeerCluster) -> None:
    cluster.clean_up()
    assert cluster.up.aws("describe-volumes")["Volumes"] == []
    assert cluster.up.aws("describe-snapshots", "--owner-ids", "self")["Snapshots"] == []
    assert lifecycle.refusals(cluster) == []
    assert cluster.restarted() == []
