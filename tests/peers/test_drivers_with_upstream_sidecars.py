"""Upstream's sidecars drive our drivers, in place of those of their deployments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.peers import stage as stages
from tests.peers import stories
from tests.peers.stage import BUILT_IN, Stage
from tests.support import in_tree
from volplane.api import quantity

PEERS = ("kubectl", "csi-provisioner", "csi-resizer", "csi-snapshotter", "snapshot-controller")
pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer(*PEERS)]

EBS = "ebs.csi.aws.com"
# The controller services' directories; the node services have the drivers' names.
DISKS = "ebs-controller"
SHARES = "efs-controller"


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with stages.staged(*stages.without_snapshot_controller(), nodes=2) as stage:
        for driver, directory in (("ebs", DISKS), ("efs", SHARES)):
            serve_controller(stage, driver, directory)
        stage.roles("csi-provisioner", "rbac.yaml")
        stage.roles("csi-resizer", "rbac.yaml")
        stage.roles("csi-snapshotter", "rbac-csi-snapshotter.yaml")
        stage.roles("snapshot-controller", "rbac-snapshot-controller.yaml")
        flags = ("--default-fstype=ext4", "--enable-capacity", "--capacity-ownerref-level=0")
        stage.sidecar("csi-provisioner", DISKS, *flags, account="csi-provisioner")
        stage.sidecar("csi-provisioner", SHARES, account="csi-provisioner", name="efs-provisioner")
        stage.attacher(DISKS)
        stage.sidecar("csi-resizer", DISKS, account="csi-resizer")
        stage.sidecar("csi-snapshotter", DISKS, account="csi-snapshotter")
        stage.snapshot_controller()
        stage.apply(
            stages.storage_class(
                "ebs", EBS, volumeBindingMode="WaitForFirstConsumer", allowVolumeExpansion=True
            ),
            stages.storage_class("at-once", EBS),
            # Mounted, ext4 grows only for a process with CAP_SYS_RESOURCE; xfs for every root.
            stages.storage_class(
                "xfs", EBS, allowVolumeExpansion=True, parameters={"csi.storage.k8s.io/fstype": "xfs"}
            ),
            stages.snapshot_class("ebs", EBS),
            in_tree.storage_class("in-tree"),
        )
        yield stage


def serve_controller(stage: Stage, driver: str, directory: str) -> None:
    """The driver's controller service by itself: its deployment would bring our sidecars."""
    name = f"{driver}-csi-controller"
    stage.delete("deployment", name, "-n", "kube-system")
    stage.gone("pods", "-n", "kube-system", "-l", f"app={name}")
    flags = ["controller", "--endpoint=unix:///csi/csi.sock"]
    plugin = stages.container(f"{BUILT_IN}{driver}-plugin", flags, mounts={"/csi": "socket"})
    stage.account(directory, f"volplane:use-{driver}-images")
    stage.run(directory, [plugin], {"socket": stages.plugin_directory(directory)}, account=directory)


def test_a_disk_is_made_and_removed(stage: Stage) -> None:
    stories.provision(stage, "at-once", EBS)


def test_the_space_that_is_left_is_published(stage: Stage) -> None:
    found = stage.wait("it is told for the class", lambda: _capacities(stage, "ebs"))
    for capacity in found:
        assert quantity.value(capacity["capacity"]) > 0
        zone = capacity["nodeTopology"]["matchLabels"]["topology.ebs.csi.aws.com/zone"]
        assert zone == "us-east-1a"
        assert [owner["name"] for owner in capacity["metadata"]["ownerReferences"]] == ["csi-provisioner"]


def _capacities(stage: Stage, kind: str) -> list[Any]:
    return [c for c in stage.up.items("csistoragecapacities") if c["storageClassName"] == kind]


def test_a_disk_moves_to_another_node(stage: Stage) -> None:
    stories.mount(stage, "ebs", node="worker-2")


@pytest.mark.peer("csi-attacher")
def test_the_attacher_attaches_and_detaches(stage: Stage) -> None:
    stories.attach(stage, "ebs", EBS, "external-attacher/ebs-csi-aws-com")


def test_a_disk_in_use_grows(stage: Stage) -> None:
    stories.grow(stage, "xfs")


def test_a_claim_of_an_in_tree_class_gets_the_volume_that_our_provisioner_would_make(stage: Stage) -> None:
    stage.claim("translated", "in-tree", "4Gi")
    stage.pod("in-tree-writer", stories.WRITE, {stories.DATA: "translated"})
    in_tree.check_claim(stage.up.get("pvc", "translated"))
    name = stage.bound("translated")["metadata"]["name"]
    stage.wait("it is marked", lambda: "migrated-to" in str(stage.up.get("pv", name)["metadata"]))
    disk = in_tree.check_volume(stage.up.get("pv", name))
    more = '{"spec":{"resources":{"requests":{"storage":"6Gi"}}}}'
    stage.up.kubectl("patch", "pvc", "translated", "--type=merge", "-p", more)
    stage.wait(
        "the claim has grown",
        lambda: stage.up.get("pvc", "translated")["status"]["capacity"]["storage"] == "6Gi",
    )
    stage.delete("pod", "in-tree-writer")
    stage.pod("in-tree-reader", stories.READ, {stories.DATA: "translated"}, node="worker-2")
    stories.remove(stage, "in-tree-reader", "translated")
    stage.gone("pv", name)
    assert disk not in str(stage.up.aws("describe-volumes"))


def test_a_snapshot_becomes_ready_and_is_restored(stage: Stage) -> None:
    stories.restore(stage, "ebs")


def test_a_disk_is_cloned(stage: Stage) -> None:
    stories.clone(stage, "ebs")


def test_a_raw_device_is_given_to_a_pod(stage: Stage) -> None:
    stories.block(stage, "ebs")


def test_two_nodes_share_a_directory(stage: Stage) -> None:
    stage.claim("shared", "efs", accessModes=["ReadWriteMany"])
    stage.pod("share-writer", stories.WRITE, {stories.DATA: "shared"}, node="worker-1")
    stage.pod("share-reader", stories.READ, {stories.DATA: "shared"}, node="worker-2")
    volume = stage.bound("shared")
    assert volume["spec"]["csi"]["driver"] == "efs.csi.aws.com"
    assert stories.attachments(stage, volume["metadata"]["name"]) == []  # shares are not attached
    stories.remove(stage, "share-writer", "")
    stories.remove(stage, "share-reader", "shared")
    stage.gone("pv", volume["metadata"]["name"])


def test_nothing_is_left_and_nobody_was_refused_anything(stage: Stage) -> None:
    stage.clean_up()
    assert stage.up.aws("describe-volumes")["Volumes"] == []
    assert stage.up.aws("describe-snapshots", "--owner-ids", "self")["Snapshots"] == []
    assert stories.refusals(stage) == []
    assert stage.restarted() == []
