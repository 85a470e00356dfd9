"""Our sidecars and nodes with upstream's host-path driver: a volume's life from claim to deletion.

The sidecars are processes of their own, each with the role that it has in the EBS driver's deployment. The
driver is registered by upstream's registrar where this machine has it, by ours elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peers import stage as stages
from tests.peers import stories
from tests.peers.stage import HOSTPATH, Stage

OTHER = "worker-2"
SHARED = "shared.hostpath.csi.example"

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer("kubectl", "hostpathplugin")]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with stages.staged(nodes=2) as stage:
        stage.hostpath()
        stage.account("our-provisioner", "volplane:external-provisioner")
        stage.account("our-attacher", "volplane:external-attacher")
        stage.account("our-resizer", "volplane:external-resizer")
        stage.account("our-snapshotter", "volplane:external-snapshotter")
        stage.ours("provisioner", HOSTPATH, account="our-provisioner")
        stage.ours("attacher", HOSTPATH, account="our-attacher")
        stage.ours("resizer", HOSTPATH, account="our-resizer")
        stage.ours("snapshotter", HOSTPATH, account="our-snapshotter")
        stage.apply(
            stages.storage_class("hostpath", HOSTPATH, allowVolumeExpansion=True),
            stages.storage_class("late", HOSTPATH, volumeBindingMode="WaitForFirstConsumer"),
            stages.snapshot_class("hostpath", HOSTPATH),
        )
        yield stage


def test_a_volume_is_made_and_removed(stage: Stage) -> None:
    stories.provision(stage, "hostpath", HOSTPATH)


def test_a_volume_is_made_where_its_pod_is_to_run(stage: Stage) -> None:
    stage.claim("late", "late")
    stage.pod("user", stories.WRITE, {stories.DATA: "late"})
    terms = stage.bound("late")["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert [e["key"] for t in terms for e in t["matchExpressions"]] == ["topology.hostpath.csi/node"]
    stories.remove(stage, "user", "late")


def test_a_volume_is_attached_mounted_and_detached(stage: Stage) -> None:
    stories.mount(stage, "hostpath")
    stories.attach(stage, "hostpath", HOSTPATH, "external-attacher/hostpath-csi-k8s-io")


def test_two_pods_share_a_volume(stage: Stage) -> None:
    stage.claim("shared", "hostpath")
    stage.pod("writer", stories.WRITE, {stories.DATA: "shared"})
    stage.pod("reader", stories.READ, {stories.DATA: "shared"})
    stories.remove(stage, "reader", "")
    stories.remove(stage, "writer", "shared")


def test_an_inline_volume_lives_with_its_pod(stage: Stage) -> None:
    stage.pod("inline", stories.WRITE, {}, **inline())
    stage.up.kubectl("exec", "inline", "-c", "stay", "--", "sh", "-ec", stories.READ)
    data = stage.up.directory / "n" / "1" / "csi-hostpath-data"
    stage.wait("its directory is there", lambda: list(data.glob("csi-*")))
    stories.remove(stage, "inline", "")
    stage.wait("its directory is gone", lambda: not list(data.glob("csi-*")))


def inline() -> dict[str, Any]:
    mounts = [{"name": "inline", "mountPath": stories.DATA}]
    work = {
        "name": "work",
        "image": "busybox",
        "command": ["sh", "-ec", stories.WRITE],
        "volumeMounts": mounts,
    }
    stay = {"name": "stay", "image": "busybox", "command": ["sleep", "infinity"], "volumeMounts": mounts}
    return {
        "initContainers": [work],
        "containers": [stay],
        "volumes": [{"name": "inline", "csi": {"driver": HOSTPATH}}],
    }


def test_a_claim_in_use_grows(stage: Stage) -> None:
    stories.grow(stage, "hostpath")


def test_a_snapshot_becomes_ready_and_is_restored(stage: Stage) -> None:
    stories.restore(stage, "hostpath")


def test_a_claim_is_cloned(stage: Stage) -> None:
    stories.clone(stage, "hostpath")


def test_a_raw_device_is_given_to_a_pod(stage: Stage) -> None:
    stories.block(stage, "hostpath")


def test_a_shared_volume_is_mounted_on_two_nodes(stage: Stage, tmp_path: Path) -> None:
    """The driver learns of its volumes from its directory when it starts, and then keeps to itself: so that
    two of them know one volume, the second starts when the volume is there.
    """
    flags, both = ("--enable-topology=false",), str(tmp_path)
    stage.hostpath(*flags, driver=SHARED, data=both, attach=False)
    stage.ours("provisioner", SHARED, account="our-provisioner")
    stage.apply(stages.storage_class("shared", SHARED))
    stage.claim("shared", "shared", accessModes=["ReadWriteMany"])
    stage.bound("shared")
    stage.hostpath(*flags, driver=SHARED, node=OTHER, data=both, attach=False)
    stage.pod("here", stories.WRITE, {stories.DATA: "shared"})
    stage.pod("there", stories.READ + "; echo again > /data/answer", {stories.DATA: "shared"}, node=OTHER)
    answer = stage.up.kubectl("exec", "here", "-c", "stay", "--", "cat", "/data/answer")
    assert answer.strip() == "again"
    stories.remove(stage, "there", "")
    stories.remove(stage, "here", "shared")


def test_nobody_was_refused_anything_or_had_to_be_restarted(stage: Stage) -> None:
    assert stage.restarted() == []
    assert stories.refusals(stage) == []
