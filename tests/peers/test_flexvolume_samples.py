"""The FlexVolume drivers that Kubernetes had as examples, unmodified: `lvm` attaches, `nfs` only mounts.

There is no device-mapper: the logical volume is a loop device with a link in /dev/mapper, which is all that
the driver looks at. There is no NFS server either: the mount fails, and the pod gets the driver's message.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import peers
from tests.support.up import Up

pytestmark = [
    pytest.mark.root,
    pytest.mark.peer("kubectl"),
    pytest.mark.peer("flexvolume-samples"),
    pytest.mark.slow,
]

GROUP = f"vp{os.getpid()}"
LVM = """
apiVersion: v1
kind: PersistentVolume
metadata: {name: lvm}
spec:
  capacity: {storage: 64Mi}
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  claimRef: {namespace: default, name: lvm}
  flexVolume:
    driver: kubernetes.io/lvm
    fsType: ext4
    options: {volumeID: disk, size: 64m, volumegroup: GROUP}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: lvm}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  volumeName: lvm
  resources: {requests: {storage: 64Mi}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 0
  containers:
    - name: c
      image: busybox
      command: [sh, -c, "echo kept >> /data/line; sync; exec sleep 1000"]
      volumeMounts: [{name: v, mountPath: /data}]
  volumes: [{name: v, SOURCE}]
"""
CLAIM = "persistentVolumeClaim: {claimName: lvm}"
NFS = "flexVolume: {driver: k8s/nfs, fsType: nfs, options: {server: 127.0.0.1, share: none}}"


def pod(name: str, node: str, source: str) -> str:
    return POD.replace("NAME", name).replace("NODE", node).replace("SOURCE", source)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    if shutil.which("jq") is None:
        pytest.skip("the drivers need jq")
    for folder, name in (("kubernetes.io~lvm", "lvm"), ("k8s~nfs", "nfs")):
        (source,) = peers.manifests("flexvolume-samples", name)
        place = tmp_path / "exec" / folder
        place.mkdir(parents=True)
        shutil.copy(source, place / name)
        (place / name).chmod(0o755)
    cluster = Up("--volume-plugin-dir", str(tmp_path / "exec"), nodes=2)
    with cluster:
        yield cluster
    assert cluster.leftovers() == {}


@pytest.fixture
def logical_volume(tmp_path: Path) -> Iterator[Path]:
    """The link that device-mapper would make; its target does not exist yet."""
    image, link = tmp_path / "disk.img", Path(f"/dev/mapper/{GROUP}-disk")
    with image.open("wb") as file:
        file.truncate(64 << 20)
    link.parent.mkdir(exist_ok=True)
    shown = subprocess.run(
        ["losetup", "-f", "--show", str(image)], capture_output=True, text=True, check=True
    )
    device = shown.stdout.strip()
    try:
        yield Path(device)
    finally:
        link.unlink(missing_ok=True)
        subprocess.run(["losetup", "-d", device], check=True)


def test_the_lvm_driver_attaches_mounts_and_moves_a_volume(up: Up, logical_volume: Path) -> None:
    up.apply(LVM.replace("GROUP", GROUP))
    up.apply(pod("first", "worker-1", CLAIM))
    missing = "attach command failed, status: Failure, reason: Volume does not exist"
    up.describe("pod", "first", f'AttachVolume.Attach failed for volume "lvm" : {missing}')
    link = Path(f"/dev/mapper/{GROUP}-disk")
    link.symlink_to(logical_volume)
    up.wait("the pod runs", lambda: up.phase("first") == "Running")
    (entry,) = up.get("node", "worker-1")["status"]["volumesAttached"]
    assert entry == {"name": "kubernetes.io/lvm/lvm", "devicePath": str(link)}
    up.kubectl("delete", "pod", "first", "--timeout=100s")
    up.apply(pod("second", "worker-2", CLAIM))
    up.wait("the pod runs", lambda: up.phase("second") == "Running")
    up.wait(
        "the data moved", lambda: up.kubectl("exec", "second", "--", "cat", "/data/line") == "kept\nkept\n"
    )
    up.kubectl("delete", "pod", "second", "--timeout=100s")
    up.wait("it is detached", lambda: not up.items("volumeattachment"))


def test_the_nfs_driver_is_only_mounted_and_its_message_is_shown(up: Up) -> None:
    up.apply(pod("share", "worker-1", NFS))
    up.describe("pod", "share", "FailedMount", "Failed to mount 127.0.0.1:none at ")
    assert up.items("volumeattachment") == []
    assert up.get("node", "worker-1")["status"].get("volumesInUse", []) == []
    up.kubectl("delete", "pod", "share", "--timeout=100s")
