"""Upstream's sidecars and snapshot controller, unmodified, with upstream's host-path driver.

Where upstream's attacher or registrar is not on this machine, ours stands in for it, and the test that shows
upstream's is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers import stage as stages
from tests.peers import stories
from tests.peers.stage import HOSTPATH, NODE, Stage

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
def stage() -> Iterator[Stage]:
    with stages.staged(*stages.without_snapshot_controller()) as stage:
        stage.definitions()
        stage.roles("csi-provisioner", "rbac.yaml")
        stage.roles("csi-resizer", "rbac.yaml")
        stage.roles("csi-snapshotter", "rbac-csi-snapshotter.yaml")
        stage.roles("snapshot-controller", "rbac-snapshot-controller.yaml")
        stage.hostpath()
        stage.attacher(HOSTPATH)
        for sidecar in ELECTED:
            stage.sidecar(sidecar, HOSTPATH, "-v=5", "--leader-election", account=sidecar)
        stage.snapshot_controller()
        stage.apply(
            stages.storage_class("hostpath", HOSTPATH, allowVolumeExpansion=True),
            stages.snapshot_class("hostpath", HOSTPATH),
        )
        yield stage


def test_the_provisioner_makes_and_removes_a_volume(stage: Stage) -> None:
    stories.provision(stage, "hostpath", HOSTPATH)


def test_each_sidecar_is_elected(stage: Stage) -> None:
    leases = {lease["metadata"]["name"]: lease["spec"] for lease in stage.up.items("leases")}
    assert set(ELECTED.values()) <= leases.keys()
    for lease in ELECTED.values():
        assert leases[lease]["holderIdentity"]
        assert leases[lease]["leaseDurationSeconds"] == 15


def test_a_pod_runs_on_the_volume(stage: Stage) -> None:
    stories.mount(stage, "hostpath")


@pytest.mark.peer("csi-attacher")
def test_the_attacher_attaches_and_detaches(stage: Stage) -> None:
    stories.attach(stage, "hostpath", HOSTPATH, "external-attacher/hostpath-csi-k8s-io")


@pytest.mark.peer("csi-node-driver-registrar")
def test_the_registrar_registers_the_driver_with_our_node(stage: Stage) -> None:
    (driver,) = [d for d in stage.up.get("csinode", NODE)["spec"]["drivers"] if d["name"] == HOSTPATH]
    assert driver["nodeID"] == NODE
    assert driver["topologyKeys"] == ["topology.hostpath.csi/node"]
    logs = stage.up.kubectl("logs", "hostpath-worker-1", "-c", "csi-node-driver-registrar")
    # Releases before and after the move to another protobuf print the same message in two spellings.
    assert "PluginRegistered:true" in logs or "plugin_registered:true" in logs


def test_the_resizer_grows_a_claim_in_use(stage: Stage) -> None:
    stories.grow(stage, "hostpath")


def test_a_snapshot_becomes_ready_and_is_restored(stage: Stage) -> None:
    stories.restore(stage, "hostpath")


def test_a_claim_is_cloned(stage: Stage) -> None:
    stories.clone(stage, "hostpath")


def test_nobody_was_refused_anything_or_had_to_be_restarted(stage: Stage) -> None:
    assert stage.restarted() == []
    assert stories.refusals(stage) == []  # with the roles that upstream ships, and no more
