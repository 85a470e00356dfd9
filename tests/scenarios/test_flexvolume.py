"""A FlexVolume as its users see it: labels, nodeAffinity, a claim, a pod, data, a move, growth.

The driver has real disks (`tests/support/flex_disks.py`). Then the same with the driver replaced, missing or
hanging, and with the controllers or a node killed at each of its calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.flex_disks import DRIVER, FlexDisks
from tests.support.up import Up

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

CLASS = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: manual}
provisioner: kubernetes.io/no-provisioner
allowVolumeExpansion: true
"""

VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata:
  name: NAME
  labels: {disk: NAME}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: manual
  persistentVolumeReclaimPolicy: Retain
  flexVolume:
    driver: example.com/disks
    fsType: xfs
    options: {size: 1G}
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions:
            - {key: kubernetes.io/hostname, operator: In, values: [worker-2, worker-3]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NAME}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: manual
  selector: {matchLabels: {disk: NAME}}
  resources: {requests: {storage: 1Gi}}
"""

POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: c
      image: busybox
      command: [sh, -c, "COMMAND; exec sleep 1000"]
      volumeMounts: [{name: v, mountPath: /data}]
  volumes:
    - name: v
      persistentVolumeClaim: {claimName: CLAIM}
"""
WRITE = "echo kept >> /data/line; sync"
GROWN = '{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}'
NODES = {"worker-2", "worker-3"}


class FlexCluster:
    """A cluster with a FlexVolume driver, and what its user does."""

    def __init__(self, up: Up, disks: FlexDisks) -> None:
        self.up, self.disks = up, disks

    def create(self, name: str) -> None:
        self.up.apply(VOLUME.replace("NAME", name))

    def run(self, pod: str, claim: str, command: str = "true") -> str:
        """The node on which the pod runs."""
        self.start(pod, claim, command)
        self.up.wait(f"{pod} runs", lambda: self.up.phase(pod) == "Running")
        return str(self.up.get("pod", pod)["spec"]["nodeName"])

    def start(self, pod: str, claim: str, command: str = "true") -> None:
        self.up.apply(POD.replace("NAME", pod).replace("CLAIM", claim).replace("COMMAND", command))

    def stop(self, pod: str) -> None:
        self.up.kubectl("delete", "pod", pod, "--wait", "--timeout=100s")

    def move(self, claim: str, old: str, new: str) -> str:
        """Delete the pod and start another on another node; the data must be there."""
        node = str(self.up.get("pod", old)["spec"]["nodeName"])
        self.stop(old)
        self.up.kubectl("cordon", node)
        other = self.run(new, claim)
        self.up.kubectl("uncordon", node)
        assert other != node
        assert self.read(new) == "kept"
        return other

    def grow(self, claim: str) -> None:
        self.up.kubectl("patch", "pvc", claim, "-p", GROWN)
        self.up.wait(f"{claim} has grown", lambda: self.capacity(claim) == "2Gi")

    def capacity(self, claim: str) -> str:
        return str(self.up.get("pvc", claim)["status"]["capacity"]["storage"])

    def file_system_size(self, pod: str) -> int:
        """In MiB."""
        shown = self.up.kubectl("exec", pod, "--", "df", "-m", "/data").splitlines()[-1]
        return int(shown.split()[1])

    def read(self, pod: str) -> str:
        return self.up.kubectl("exec", pod, "--", "cat", "/data/line").strip()

    def listed(self, node: str) -> dict[str, str]:
        found = self.up.get("node", node)["status"].get("volumesAttached", [])
        return {v["name"]: v["devicePath"] for v in found if v["name"].startswith(DRIVER)}

    def remove(self, claim: str) -> None:
        """Delete everything; nothing of it may be left anywhere."""
        self.up.kubectl("delete", "pvc", claim, "--timeout=100s")
        self.up.kubectl("delete", "pv", claim, "--timeout=100s")
        self.up.wait("nothing is attached", lambda: not self.attachments() and not self.disks.attached())
        assert self.disks.loops() == []
        (self.disks.state / f"{claim}.img").unlink()

    def attachments(self) -> list[Any]:
        found = self.up.items("volumeattachment")
        return [a for a in found if a["spec"]["attacher"] == "flexvolume.volplane.io"]

    def event(self, pod: str, text: str) -> None:
        def is_recorded() -> bool:
            return text in self.up.kubectl("describe", "pod", pod)

        self.up.wait(f"an event of {pod} has {text!r}", is_recorded)


@contextmanager
def run_cluster(directory: Path, *, complete: bool = False) -> Iterator[FlexCluster]:
    disks = FlexDisks(directory)
    disks.install(complete=complete)
    up = Up("--volume-plugin-dir", str(disks.plugins), nodes=3)
    try:
        with up:
            up.apply(CLASS)
            yield FlexCluster(up, disks)
    finally:
        disks.clean()
    assert up.leftovers() == {}


@pytest.fixture(scope="module")
def flex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlexCluster]:
    with run_cluster(tmp_path_factory.mktemp("flex")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlexCluster]:
    """The driver leaves no command to the kubelet."""
    with run_cluster(tmp_path_factory.mktemp("flex"), complete=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlexCluster]:
    """Each role is a process that can be killed by a failpoint; its keeper starts it again."""
    disks = FlexDisks(tmp_path_factory.mktemp("flex"))
    disks.install(complete=True)
    up = Up("--separate", "--volume-plugin-dir", str(disks.plugins), nodes=3)
    try:
        up.start({"VOLPLANE_FAILPOINT_FILE": str(failpoint(up))})
        up.apply(CLASS)
        yield FlexCluster(up, disks)
    finally:
        up.remove()
        disks.clean()
    assert up.leftovers() == {}


def failpoint(up: Up) -> Path:
    return up.directory / "failpoint"


def test_a_volume_lives_from_its_manifest_to_its_removal(flex: FlexCluster) -> None:
    flex.create("walk")
    node = flex.run("walk-1", "walk", WRITE)
    assert node in NODES  # nodeAffinity
    (entry,) = flex.listed(node).items()
    assert re.fullmatch(r"/dev/loop\d+", entry[1])
    assert entry[0] == "example.com/disks/walk"
    assert flex.disks.attached() == {"walk": node}
    flex.event("walk-1", 'AttachVolume.Attach succeeded for volume "walk"')
    options = json.loads(next(call for call in flex.disks.calls if call[0] == "attach")[1])
    assert options == {
        "kubernetes.io/fsType": "xfs",
        "kubernetes.io/readwrite": "rw",
        "kubernetes.io/pvOrVolumeName": "walk",
        "size": "1G",
    }
    other = flex.move("walk", "walk-1", "walk-2")
    assert flex.listed(node) == {}
    assert flex.disks.attached() == {"walk": other}
    before = flex.file_system_size("walk-2")
    flex.grow("walk")
    assert flex.file_system_size("walk-2") > before + 512
    assert flex.up.get("pv", "walk")["spec"]["capacity"]["storage"] == "2Gi"
    assert flex.read("walk-2") == "kept"
    flex.stop("walk-2")
    moves = flex.disks.commands("attach", "waitforattach", "detach", "expandvolume")
    assert [*dict.fromkeys(moves)] == ["attach", "waitforattach", "detach", "expandvolume"]
    assert moves[-1] == "detach" or flex.up.wait("it is detached", lambda: not flex.disks.attached())
    flex.remove("walk")


def test_a_driver_is_replaced_while_its_volume_is_mounted(flex: FlexCluster) -> None:
    flex.create("replaced")
    flex.run("replaced-1", "replaced", WRITE)
    flex.disks.forget_calls()
    flex.disks.install(complete=True)
    flex.up.wait("the new one is loaded", lambda: flex.disks.commands("init"))
    flex.move("replaced", "replaced-1", "replaced-2")
    assert {"unmount", "unmountdevice", "mountdevice", "mount"} <= {call[0] for call in flex.disks.calls}
    flex.stop("replaced-2")
    flex.remove("replaced")
    flex.disks.install()


def test_a_driver_that_is_missing_is_named_and_used_when_it_is_back(flex: FlexCluster) -> None:
    flex.create("missing")
    flex.disks.remove()
    flex.start("missing-1", "missing", WRITE)
    flex.event("missing-1", f"FlexVolume driver {DRIVER}")
    flex.disks.install()
    flex.up.wait("the pod runs", lambda: flex.up.phase("missing-1") == "Running")
    flex.stop("missing-1")
    flex.remove("missing")


STARTING = ("getvolumename", "attach", "waitforattach", "mountdevice", "mount")
GROWING = ("expandvolume", "expandfs")
ENDING = ("unmount", "unmountdevice", "detach")


@pytest.mark.parametrize("command", [*STARTING, *GROWING, *ENDING])
def test_a_driver_that_hangs_keeps_only_its_volume_waiting(complete: FlexCluster, command: str) -> None:
    flex = complete

    def is_running() -> bool:
        return flex.up.phase("hangs-1") == "Running"

    flex.create("hangs")
    flex.create("other")
    flex.disks.forget_calls()
    flex.disks.hang(command, "hangs")
    try:
        flex.start("hangs-1", "hangs", WRITE)
        if command not in STARTING:
            flex.up.wait("the pod runs", is_running)
        if command in GROWING:
            flex.up.kubectl("patch", "pvc", "hangs", "-p", GROWN)
        elif command in ENDING:
            flex.up.kubectl("delete", "pod", "hangs-1", "--wait=false")
        flex.up.wait("the call hangs", lambda: flex.disks.commands(command))
        flex.run("other-1", "other", WRITE)  # another volume of the same driver
        if command in STARTING:
            assert not is_running()
        elif command in GROWING:
            assert flex.capacity("hangs") == "1Gi"
        else:
            assert "hangs" in flex.disks.attached()
    finally:
        flex.disks.release(command)
    if command not in ENDING:
        flex.up.wait("the pod runs", is_running)
        if command in GROWING:
            flex.up.wait("it has grown", lambda: flex.capacity("hangs") == "2Gi")
        assert flex.read("hangs-1") == "kept"
        flex.up.kubectl("delete", "pod", "hangs-1", "--wait=false")
    flex.up.wait("it is detached", lambda: "hangs" not in flex.disks.attached())
    flex.up.wait("the pod is gone", lambda: "hangs-1" not in flex.up.kubectl("get", "pods", "-o", "name"))
    flex.stop("other-1")
    for name in ("hangs", "other"):
        flex.up.kubectl("delete", "pvc,pv", name)
    flex.up.wait("nothing is attached", lambda: not flex.attachments() and not flex.disks.attached())
    for name in ("hangs", "other"):
        (flex.disks.state / f"{name}.img").unlink()


CALLS = (
    *("attach", "waitforattach", "mountdevice", "mount", "expandvolume", "expandfs"),
    *("unmount", "unmountdevice", "detach"),
)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", CALLS)
def test_a_role_that_is_killed_at_a_call_finishes_after_its_restart(
    apart: FlexCluster, call: str, when: str
) -> None:
    name = f"{call}-{when}"
    apart.create(name)
    failpoint(apart.up).write_text(f"flexvolume:{call}:{when}\n")
    apart.run(f"{name}-1", name, WRITE)
    apart.move(name, f"{name}-1", f"{name}-2")
    apart.grow(name)
    assert apart.file_system_size(f"{name}-2") > 1500
    assert apart.read(f"{name}-2") == "kept"
    apart.stop(f"{name}-2")
    assert not failpoint(apart.up).exists(), "no role was killed"
    apart.remove(name)
