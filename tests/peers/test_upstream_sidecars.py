"""Upstream's sidecars and snapshot controller, unmodified, with upstream's host-path driver.

Where upstream's attacher or registrar is not on this machine, ours stands in for it, and the test that shows
upstream's is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers import lifecycle, peer_cluster
from tests.peers.peer_cluster import HOSTPATH, NODE, PeerCluster

PEERS = (
    "kubectl",
    "hostpathplugin",
    "csi-provisioner",
    "csi-resizer",
    "csi-snapshotter",
    "snapshot-controller",
)
pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer(*PEERS)]

ELECTED = {  # sidecar → the lease that its leader holds
    "csi-provisioner": "hostpath-csi-k8s-io",
    "csi-resizer": "external-resizer-hostpath-csi-k8s-io",
    "csi-snapshotter": "external-snapshotter-leader-hostpath-csi-k8s-io",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[PeerCluster]:
    with peer_cluster.run_peer_cluster(*peer_cluster.without_snapshot_controller()) as cluster:
        cluster.definitions()
        cluster.roles("csi-provisioner", "rbac.yaml")
        cluster.roles("csi-resizer", "rbac.yaml")
        cluster.roles("csi-snapshotter", "rbac-csi-snapshotter.yaml")
        cluster.roles("snapshot-controller", "rbac-snapshot-controller.yaml")
        cluster.hostpath()
        cluster.attacher(HOSTPATH)
        for sidecar in ELECTED:
            cluster.sidecar(sidecar, HOSTPATH, "-v=5", "--leader-election", account=sidecar)
        cluster.snapshot_controller()
        cluster.apply(
            peer_cluster.storage_class("hostpath", HOSTPATH, allowVolumeExpansion=True),
            peer_cluster.snapshot_class("hostpath", HOSTPATH),
        )
        yield cluster


def test_the_provisioner_makes_and_removes_a_volume(cluster: PeerCluster) -> None:
    lifecycle.provision(cluster, "hostpath", HOSTPATH)


def test_each_sidecar_is_elected(cluster: PeerCluster) -> None:
    leases = {lease["metadata"]["name"]: lease["spec"] for lease in cluster.up.items("leases")}
    assert set(ELECTED.values()) <= leases.keys()
    for lease in ELECTED.values():
        assert leases[lease]["holderIdentity"]
        assert leases[lease]["leaseDurationSeconds"] == 15


def test_a_pod_runs_on_the_volume(cluster: PeerCluster) -> None:
    lifecycle.mount(cluster, "hostpath")


@pytest.mark.peer("csi-attacher")
def test_the_attacher_attaches_and_detaches(cluster: PeerCluster) -> None:
    lifecycle.attach(cluster, "hostpath", HOSTPATH, "external-attacher/hostpath-csi-k8s-io")


@pytest.mark.peer("csi-node-driver-registrar")
def test_the_registrar_registers_the_driver_with_our_node(cluster: PeerCluster) -> None:
    (driver,) = [d for d in cluster.up.get("csinode", NODE)["spec"]["drivers"] if d["name"] == HOSTPATH]
    assert driver["nodeID"] == NODE
    assert driver["topologyKeys"] == ["topology.hostpath.csi/node"]
    logs = cluster.up.kubectl("logs", "hostpath-worker-1", "-c", "csi-node-driver-registrar")
    # Releases before and after the move to another protobuf print the same message in two spellings.
    assert "PluginRegistered:true" in logs or "plugin_registered:true" in logs


def test_the_resizer_grows_a_claim_in_use(cluster: PeerCluster) -> None:
    lifecycle.grow(cluster, "hostpath")


def test_a_snapshot_becomes_ready_and_is_restored(cluster: PeerCluster) -> None:
    lifecycle.restore(cluster, "hostpath")


def test_a_claim_is_cloned(cluster: PeerCluster) -> None:
    lifecycle.clone(cluster, "hostpath")


def test_nobody_was_refused_anything_or_had_to_be_restarted(cluster: PeerCluster) -> None:
    assert cluster.restarted() == []
    assert lifecycle.refusals(cluster) == []  # with the roles that upstream ships, and no more
