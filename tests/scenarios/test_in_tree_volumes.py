"""In-tree EBS volumes with real disks: classes, hand-written volumes, volumes in pods, and bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.in_tree import DRIVER, ZONE, check_claim, check_volume, storage_class
from tests.support.up import Up, wait_until
from volplane.api.names import attachment_name

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

PATIENCE = 90.0
WAITING = 3  # exit code of explain

CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {name}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: "{cls}"
  volumeName: "{volume}"
  resources:
    requests: {{storage: 4Gi}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  terminationGracePeriodSeconds: 0
  nodeSelector: {{kubernetes.io/hostname: {node}}}
  containers:
    - name: c
      image: busybox
      command: [sleep, "100000"]
      volumeMounts: [{{name: data, mountPath: /data}}]
  volumes:
    - name: data
      {source}
"""
VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata:
  name: {name}
  labels: {labels}
spec:
  capacity: {{storage: 4Gi}}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  {source}
"""
FIRST, SECOND, THIRD = "worker-1", "worker-2", "worker-3"


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    """Two nodes in the first zone, one in the second."""
    cluster = Up("--nodes-per-zone", "2", nodes=3)
    with cluster:
        cluster.apply(json.dumps(storage_class("in-tree")))
        yield cluster
        cluster.kubectl("delete", "pods,pvc", "--all", "--timeout=60s")
        cluster.kubectl("delete", "pv", "--all", "--timeout=60s")
        wait_until("all is detached", lambda: not cluster.items("volumeattachments"), 60)
        for disk in cluster.aws("describe-volumes")["Volumes"]:
            cluster.aws("delete-volume", "--volume-id", disk["VolumeId"])
    assert cluster.leftovers() == {}


def claim(name: str, cls: str = "in-tree", volume: str = "") -> str:
    return CLAIM.format(name=name, cls=cls, volume=volume)


def pod(name: str, source: str, node: str = FIRST) -> str:
    return POD.format(name=name, node=node, source=source)


def use(name: str) -> str:
    return f"persistentVolumeClaim: {{claimName: {name}}}"


def ebs(disk: str, more: str = "") -> str:
    return f'awsElasticBlockStore: {{volumeID: "{disk}"{more}}}'


def run(up: Up, name: str, source: str, node: str = FIRST) -> None:
    up.apply(pod(name, source, node))
    up.wait_running(name, PATIENCE)


def sh(up: Up, name: str, command: str) -> str:
    return up.kubectl("exec", name, "--", "sh", "-c", command).strip()


def write(up: Up, name: str) -> str:
    sh(up, name, "head -c 4194304 /dev/urandom > /data/file && sync")
    return read(up, name)


def read(up: Up, name: str) -> str:
    return sh(up, name, "sha256sum /data/file").split()[0]


def end(up: Up, *pods: str) -> None:
    up.kubectl("delete", "pod", *pods, "--timeout=60s")


def new_disk(up: Up) -> str:
    zone = up.get("node", FIRST)["metadata"]["labels"][ZONE]
    made: str = up.aws("create-volume", "--size", "4", "--availability-zone", zone)["VolumeId"]
    wait_until("the disk is available", lambda: disk_state(up, made) == "available", 30)
    return made


def disk_state(up: Up, disk: str) -> str:
    state: str = up.aws("describe-volumes", "--volume-ids", disk)["Volumes"][0]["State"]
    return state


def attachment(up: Up, disk: str, node: str) -> dict[str, Any]:
    found: dict[str, Any] = up.get("volumeattachment", attachment_name(disk, DRIVER, node))
    return found


def test_a_claim_of_an_in_tree_class_is_an_in_tree_volume_until_its_disk_is_deleted(up: Up) -> None:
    up.apply(claim("app"))
    run(up, "writer", use("app"))
    asked = up.get("pvc", "app")
    check_claim(asked)
    volume = up.get("pv", asked["spec"]["volumeName"])
    disk = check_volume(volume)
    assert "AWSElasticBlockStore" in up.describe("pv", volume["metadata"]["name"], disk)
    (made,) = up.aws("describe-volumes", "--volume-ids", disk)["Volumes"]
    assert (made["VolumeType"], made["Iops"]) == ("io1", 100)  # the minimum, not 4 times 10
    assert attachment(up, disk, FIRST)["spec"]["source"] == {
        "persistentVolumeName": volume["metadata"]["name"]
    }
    assert " xfs " in sh(up, "writer", "grep ' /data ' /proc/mounts")
    _check_move_and_growth(up, disk)
    up.kubectl("delete", "pvc", "app", "--timeout=60s")
    wait_until("the volume is deleted", lambda: not up.items("pv"), 60)
    assert up.aws("describe-volumes")["Volumes"] == []


def _check_move_and_growth(up: Up, disk: str) -> None:
    before = write(up, "writer")
    end(up, "writer")
    run(up, "reader", use("app"), SECOND)
    assert read(up, "reader") == before
    assert attachment(up, disk, SECOND)["status"]["attached"] is True
    up.kubectl("patch", "pvc", "app", "-p", '{"spec":{"resources":{"requests":{"storage":"6Gi"}}}}')
    wait_until(
        "the claim has grown",
        lambda: up.get("pvc", "app")["status"]["capacity"]["storage"] == "6Gi",
        PATIENCE,
    )
    assert up.get("pvc", "app")["metadata"]["annotations"]["volume.kubernetes.io/storage-resizer"] == DRIVER
    up.describe("pvc", "app", "CSI migration enabled for kubernetes.io/aws-ebs; waiting for external resizer")
    assert int(sh(up, "reader", "df -m /data").splitlines()[-1].split()[1]) > 5500
    assert read(up, "reader") == before
    end(up, "reader")


def test_the_nodes_say_which_plugins_they_translate(up: Up) -> None:
    notes = up.get("csinode", FIRST)["metadata"]["annotations"]
    assert notes["storage.alpha.kubernetes.io/migrated-plugins"] == "kubernetes.io/aws-ebs"


def test_a_hand_written_volume_serves_an_existing_disk(up: Up) -> None:
    disk = new_disk(up)
    labels = "{failure-domain.beta.kubernetes.io/zone: us-east-1a}"
    up.apply(VOLUME.format(name="by-hand", labels=labels, source=ebs(f"aws://us-east-1a/{disk}")))
    up.apply(claim("by-hand", cls="", volume="by-hand"))
    run(up, "one", use("by-hand"))
    before = write(up, "one")
    assert f"kubernetes.io/csi/{DRIVER}^{disk}" in up.get("node", FIRST)["status"]["volumesInUse"]
    assert "migrated-to" not in str(up.get("pv", "by-hand")["metadata"].get("annotations"))
    end(up, "one")
    up.kubectl("delete", "pvc", "by-hand", "--timeout=60s")
    assert up.get("pv", "by-hand")["status"]["phase"] == "Released"
    up.kubectl("delete", "pv", "by-hand", "--timeout=60s")
    run(up, "two", ebs(disk), SECOND)  # the disk and its data are still there
    assert read(up, "two") == before
    end(up, "two")


def test_a_pod_has_a_disk_without_a_claim_and_keeps_it_over_a_restart(up: Up) -> None:
    disk = new_disk(up)
    run(up, "inline", ebs(f"aws:///{disk}", ", fsType: ext4"))
    before = write(up, "inline")
    spec = attachment(up, disk, FIRST)["spec"]
    assert spec["source"] == {
        "inlineVolumeSpec": {
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem",
            "csi": {
                "driver": DRIVER,
                "volumeHandle": disk,
                "fsType": "ext4",
                "volumeAttributes": {"partition": "0"},
            },
        }
    }
    up.describe("pod", "inline", f'AttachVolume.Attach succeeded for volume "{DRIVER}-{disk}"', disk)
    up.kill()
    up.start()
    up.wait_running("inline", PATIENCE)
    assert read(up, "inline") == before
    up.apply(pod("second", ebs(f"aws:///{disk}")))
    up.describe("pod", "second", "1 node(s) had no available disk")
    end(up, "inline", "second")
    wait_until("the disk is detached", lambda: disk_state(up, disk) == "available", 60)
    run(up, "look", ebs(disk, ", readOnly: true"), SECOND)
    assert read(up, "look") == before
    assert "Read-only file system" in up.kubectl("exec", "look", "--", "touch", "/data/x", check=False)
    end(up, "look")


def test_bad_disks_are_named_in_events(up: Up) -> None:
    up.apply(pod("unknown", ebs("vol-0123456789abcdef0")))
    up.describe("pod", "unknown", "FailedAttachVolume", "The volume 'vol-0123456789abcdef0' does not exist")
    up.apply(pod("wrong", ebs("aws://us-east-1a/disk-7")))
    problem = 'volume data: awsElasticBlockStore.volumeID: "aws://us-east-1a/disk-7" is not a volume id'
    up.describe("pod", "wrong", "FailedMount", problem)
    code, why = up.explain("pod/unknown")
    assert code == WAITING
    assert "The volume 'vol-0123456789abcdef0' does not exist" in why
    end(up, "unknown", "wrong")


def test_a_volume_that_is_in_another_zone_than_its_label_says_is_not_attached(up: Up) -> None:
    disk = new_disk(up)
    labels = f"{{{ZONE}: us-east-1b}}"
    up.apply(VOLUME.format(name="elsewhere", labels=labels, source=ebs(disk)))
    up.apply(claim("elsewhere", cls="", volume="elsewhere"))
    up.apply(pod("lost", use("elsewhere"), FIRST))
    up.describe("pod", "lost", "node(s) didn't match PersistentVolume's node affinity")
    up.apply(pod("there", use("elsewhere"), THIRD))
    up.describe("pod", "there", "FailedAttachVolume", "is not in the same availability zone")
    end(up, "lost", "there")


def test_removed_plugins_are_named_with_the_driver_that_replaces_them(up: Up) -> None:
    up.apply(pod("gce", "gcePersistentDisk: {pdName: disk}"))
    gce = "gcePersistentDisk: the in-tree plugin kubernetes.io/gce-pd is replaced by the CSI driver"
    up.describe("pod", "gce", "FailedMount", f"{gce} pd.csi.storage.gke.io")
    code, why = up.explain("pod/gce")
    assert code == WAITING
    assert f"{gce} pd.csi.storage.gke.io" in why
    up.apply(VOLUME.format(name="ceph", labels="{}", source="rbd: {monitors: [m], image: i}"))
    up.apply(claim("ceph", cls="", volume="ceph"))
    up.apply(pod("ceph", use("ceph")))
    rbd = "the in-tree plugin kubernetes.io/rbd was removed from Kubernetes in v1.31"
    up.describe("pod", "ceph", "FailedMount", f"rbd: {rbd}")
    for name in ("gce-pd", "rbd"):
        up.apply(
            "apiVersion: storage.k8s.io/v1\nkind: StorageClass\n"
            f"metadata: {{name: {name}}}\nprovisioner: kubernetes.io/{name}\n"
        )
        up.apply(claim(f"of-{name}", cls=name))
    up.describe("pvc", "of-gce-pd", "ExternalProvisioning", "pd.csi.storage.gke.io")
    up.describe("pvc", "of-rbd", "ProvisioningFailed", rbd)
    assert rbd in up.explain("pvc/of-rbd")[1]
    end(up, "gce", "ceph")


def test_a_class_with_zones_and_topologies_provisions_nothing(up: Up) -> None:
    up.apply(json.dumps(storage_class("both", parameters={"zone": "us-east-1a"})))
    up.apply(claim("both", cls="both"))
    up.apply(pod("both", use("both")))
    why = "failed to translate storage class: StorageClass both: parameters zone and zones cannot be used"
    up.describe("pvc", "both", "ProvisioningFailed", why)
    end(up, "both")


def test_a_node_without_an_nfs_client_or_iscsi_initiator_says_what_is_missing(up: Up) -> None:
    if shutil.which("mount.nfs", path="/sbin:/usr/sbin") or shutil.which("iscsiadm"):
        pytest.skip("this machine has a client")
    up.apply(pod("nfs", "nfs: {server: files.example.com, path: /exports}"))
    missing = "cannot mount files.example.com:/exports: the program mount.nfs is missing on this node"
    up.describe("pod", "nfs", "FailedMount", missing, "Debian: nfs-common")
    code, why = up.explain("pod/nfs")
    assert code == WAITING
    assert missing in why
    portal = "{targetPortal: 10.0.0.1, iqn: iqn.2026-01.com.example:a, lun: 0}"
    up.apply(VOLUME.format(name="iscsi", labels="{}", source=f"iscsi: {portal}"))
    up.apply(claim("iscsi", cls="", volume="iscsi"))
    up.apply(pod("iscsi", use("iscsi")))
    up.describe("pod", "iscsi", "FailedMount", "the program iscsiadm is missing on this node")
    end(up, "nfs", "iscsi")
