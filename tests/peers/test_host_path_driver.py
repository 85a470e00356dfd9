"""Our sidecars and nodes with upstream's host-path driver: a volume's life from claim to deletion.

The sidecars are processes of their own, each with the role that it has in the EBS driver's deployment. The
driver is registered by upstream's registrar where this machine has it, by ours elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peers import lifecycle, peer_cluster
from tests.peers.peer_cluster import HOSTPATH, PeerCluster

OTHER = "worker-2"
SHARED = "shared.hostpath.csi.example"

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer("kubectl", "hostpathplugin")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[PeerCluster]:
    with peer_cluster.run_peer_cluster(nodes=2) as cluster:
        cluster.hostpath()
        cluster.account("our-provisioner", "volplane:external-provisioner")
        cluster.account("our-attacher", "volplane:external-attacher")
        cluster.account("our-resizer", "volplane:external-resizer")
        cluster.account("our-snapshotter", "volplane:external-snapshotter")
        cluster.ours("provisioner", HOSTPATH, account="our-provisioner")
        cluster.ours("attacher", HOSTPATH, account="our-attacher")
        cluster.ours("resizer", HOSTPATH, account="our-resizer")
        cluster.ours("snapshotter", HOSTPATH, account="our-snapshotter")
        cluster.apply(
            peer_cluster.storage_class("hostpath", HOSTPATH, allowVolumeExpansion=True),
            peer_cluster.storage_class("late", HOSTPATH, volumeBindingMode="WaitForFirstConsumer"),
            peer_cluster.snapshot_class("hostpath", HOSTPATH),
        )
        yield cluster


def test_a_volume_is_made_and_removed(cluster: PeerCluster) -> None:
    lifecycle.provision(cluster, "hostpath", HOSTPATH)


def test_a_volume_is_made_where_its_pod_is_to_run(cluster: PeerCluster) -> None:
    cluster.claim("late", "late")
    cluster.pod("user", lifecycle.WRITE, {lifecycle.DATA: "late"})
    terms = cluster.bound("late")["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert [e["key"] for t in terms for e in t["matchExpressions"]] == ["topology.hostpath.csi/node"]
    lifecycle.remove(cluster, "user", "late")


def test_a_volume_is_attached_mounted_and_detached(cluster: PeerCluster) -> None:
    lifecycle.mount(cluster, "hostpath")
    lifecycle.attach(cluster, "hostpath", HOSTPATH, "external-attacher/hostpath-csi-k8s-io")


def test_two_pods_share_a_volume(cluster: PeerCluster) -> None:
    cluster.claim("shared", "hostpath")
    cluster.pod("writer", lifecycle.WRITE, {lifecycle.DATA: "shared"})
    cluster.pod("reader", lifecycle.READ, {lifecycle.DATA: "shared"})
    lifecycle.remove(cluster, "reader", "")
    lifecycle.remove(cluster, "writer", "shared")


def test_an_inline_volume_lives_with_its_pod(cluster: PeerCluster) -> None:
    cluster.pod("inline", lifecycle.WRITE, {}, **inline())
    cluster.up.kubectl("exec", "inline", "-c", "stay", "--", "sh", "-ec", lifecycle.READ)
    data = cluster.up.directory / "n" / "1" / "csi-hostpath-data"
    cluster.wait("its directory is there", lambda: list(data.glob("csi-*")))
    lifecycle.remove(cluster, "inline", "")
    cluster.wait("its directory is gone", lambda: not list(data.glob("csi-*")))


def inline() -> dict[str, Any]:
    mounts = [{"name": "inline", "mountPath": lifecycle.DATA}]
    work = {
        "name": "work",
        "image": "busybox",
        "command": ["sh", "-ec", lifecycle.WRITE],
        "volumeMounts": mounts,
    }
    stay = {"name": "stay", "image": "busybox", "command": ["sleep", "infinity"], "volumeMounts": mounts}
    return {
        "initContainers": [work],
        "containers": [stay],
        "volumes": [{"name": "inline", "csi": {"driver": HOSTPATH}}],
    }


def test_a_claim_in_use_grows(cluster: PeerCluster) -> None:
    lifecycle.grow(cluster, "hostpath")


def test_a_snapshot_becomes_ready_and_is_restored(cluster: PeerCluster) -> None:
    lifecycle.restore(cluster, "hostpath")


def test_a_claim_is_cloned(cluster: PeerCluster) -> None:
    lifecycle.clone(cluster, "hostpath")


def test_a_raw_device_is_given_to_a_pod(cluster: PeerCluster) -> None:
    lifecycle.block(cluster, "hostpath")


def test_a_shared_volume_is_mounted_on_two_nodes(cluster: PeerCluster, tmp_path: Path) -> None:
    """The driver learns of its volumes from its directory when it starts, and then keeps to itself: so that
    two of them know one volume, the second starts when the volume is there.
    """
    flags, both = ("--enable-topology=false",), str(tmp_path)
    cluster.hostpath(*flags, driver=SHARED, data=both, attach=False)
    cluster.ours("provisioner", SHARED, account="our-provisioner")
    cluster.apply(peer_cluster.storage_class("shared", SHARED))
    cluster.claim("shared", "shared", accessModes=["ReadWriteMany"])
    cluster.bound("shared")
    cluster.hostpath(*flags, driver=SHARED, node=OTHER, data=both, attach=False)
    cluster.pod("here", lifecycle.WRITE, {lifecycle.DATA: "shared"})
    cluster.pod(
        "there", lifecycle.READ + "; echo again > /data/answer", {lifecycle.DATA: "shared"}, node=OTHER
    )
    answer = cluster.up.kubectl("exec", "here", "-c", "stay", "--", "cat", "/data/answer")
    assert answer.strip() == "again"
    lifecycle.remove(cluster, "there", "")
    lifecycle.remove(cluster, "here", "shared")


def test_nobody_was_refused_anything_or_had_to_be_restarted(cluster: PeerCluster) -> None:
    assert cluster.restarted() == []
    assert lifecycle.refusals(cluster) == []
