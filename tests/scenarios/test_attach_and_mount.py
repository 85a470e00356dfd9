"""What keeps a disk where it is: a foreign mount namespace, a deaf container, a busy mount; who shares it.

In each test a second pod waits on another node for the same disk. It gets it when the first node has really
let go, with the data, and never a moment earlier.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.up import Up, wait_until

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

LONG = 60.0

CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %(claim)s}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: standard
  resources: {requests: {storage: 64Mi}}
"""

POD = """
apiVersion: v1
kind: Pod
metadata: {name: %(name)s}
spec:
  nodeName: %(node)s
  terminationGracePeriodSeconds: %(grace)d
  containers:
    - name: c
      image: busybox
      command: [sh, -c, "%(command)s"]
      volumeMounts: [{name: v, mountPath: /data}]
  volumes:
    - name: v
      persistentVolumeClaim: {claimName: %(claim)s}
"""
WRITES = "echo kept > /data/line; sync; exec sleep 1000"
READS = "exec sleep 1000"


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    cluster = Up(nodes=2)
    with cluster:
        yield cluster
    assert cluster.leftovers() == {}


def pod(up: Up, name: str, claim: str, node: str, command: str = READS, grace: int = 0) -> None:
    up.apply(POD % {"name": name, "claim": claim, "node": node, "command": command, "grace": grace})


def first_pod(up: Up, claim: str, command: str = WRITES, grace: int = 0) -> str:
    """Runs on worker-1 with a new disk, whose handle it returns."""
    up.apply(CLAIM % {"claim": claim})
    wait_until("the claim is bound", lambda: up.get("pvc", claim)["status"].get("phase") == "Bound", LONG)
    pod(up, f"{claim}-1", claim, "worker-1", command, grace)
    up.wait_running(f"{claim}-1", LONG)
    wait_until("the file is written", lambda: read(up, f"{claim}-1") == "kept", LONG)
    volume = up.get("pvc", claim)["spec"]["volumeName"]
    return str(up.get("pv", volume)["spec"]["csi"]["volumeHandle"])


def read(up: Up, name: str) -> str:
    return up.kubectl("exec", name, "--", "cat", "/data/line").strip()


def published(up: Up, name: str) -> str:
    """Where the pod's volume is mounted on this machine."""
    uid = up.get("pod", name)["metadata"]["uid"]
    table = Path("/proc/self/mountinfo").read_text().splitlines()
    (target,) = [line.split()[4] for line in table if uid in line and "kubernetes.io~csi" in line]
    return target


def loops_of(handle: str) -> list[str]:
    """Loop devices of the disk; two would be two ways to write to it."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if handle in backing.read_text():
                found.append(backing.parent.parent.name)
        except OSError:
            continue
    return found


def attachments(up: Up, claim: str) -> dict[str, Any]:
    volume = up.get("pvc", claim)["spec"]["volumeName"]
    found = up.items("volumeattachment")
    return {a["spec"]["nodeName"]: a for a in found if a["spec"]["source"]["persistentVolumeName"] == volume}


def moved(up: Up, claim: str) -> None:
    up.wait_running(f"{claim}-2", LONG)
    assert read(up, f"{claim}-2") == "kept"
    assert set(attachments(up, claim)) == {"worker-2"}
    up.kubectl("delete", "pod", f"{claim}-2")
    up.kubectl("delete", "pvc", claim)


@contextmanager
def process(*command: str, ready: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs until the end of the block; it has begun when it has printed `ready`."""
    made = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    try:
        assert made.stdout is not None
        assert made.stdout.readline().decode().strip() == ready
        yield made
    finally:
        made.kill()
        made.wait()
        assert made.stdout is not None
        made.stdout.close()


def test_a_volume_pinned_in_a_foreign_mount_namespace_waits_with_the_reason(up: Up) -> None:
    handle = first_pod(up, "pinned")
    # A mere copy of the mounts would go when the node removes the directory; one at another place stays.
    hold = f"mount --bind '{published(up, 'pinned-1')}' /mnt && echo held && exec sleep 1000"
    with process("unshare", "-m", "--propagation", "private", "sh", "-c", hold, ready="held"):
        pod(up, "pinned-2", "pinned", "worker-2")
        up.kubectl("delete", "pod", "pinned-1")  # ends, and is unmounted on the node

        def refused() -> bool:
            held = attachments(up, "pinned").get("worker-1", {})
            return "in use" in str(held.get("status", {}).get("detachError", "")).lower()

        wait_until("the detach is refused with the reason", refused, LONG)
        assert up.phase("pinned-2") == "Pending"
        assert len(loops_of(handle)) == 1
        assert (
            "worker-2" not in attachments(up, "pinned")
            or not (attachments(up, "pinned")["worker-2"]["status"]["attached"])
        )
    moved(up, "pinned")


def test_a_container_that_ignores_sigterm_keeps_its_volume_until_it_is_killed(up: Up) -> None:
    deaf = "echo kept > /data/line; sync; trap '' TERM; while :; do date > /data/alive; sleep 0.2; done"
    handle = first_pod(up, "deaf", deaf, grace=4)
    pod(up, "deaf-2", "deaf", "worker-2")
    up.kubectl("delete", "pod", "deaf-1", "--wait=false")
    node = up.get("node", "worker-1")
    assert any(handle in name for name in node["status"]["volumesInUse"])
    assert "worker-2" not in attachments(up, "deaf")
    assert up.phase("deaf-2") == "Pending"
    assert len(loops_of(handle)) == 1
    described = up.kubectl("describe", "pod", "deaf-2")
    wait_until(
        "the second pod is told who has it",
        lambda: "Multi-Attach error" in up.kubectl("describe", "pod", "deaf-2") or "deaf-1" in described,
        LONG,
    )
    moved(up, "deaf")
    assert up.kubectl("get", "pod", "deaf-1", "--ignore-not-found") == ""


def test_a_busy_unmount_is_waited_for_and_the_disk_meets_no_second_mount(up: Up) -> None:
    handle = first_pod(up, "clamped", grace=1)
    target = published(up, "clamped-1")
    pod(up, "clamped-2", "clamped", "worker-2")
    with process("sh", "-c", f"cd '{target}' && echo held && exec sleep 1000", ready="held"):
        up.kubectl("delete", "pod", "clamped-1", "--wait=false")

        def reported() -> bool:
            logs = up.kubectl("logs", "-n", "kube-system", "-l", "app=ebs-csi-node", "-c", "ebs-plugin")
            return "device or resource busy" in logs.lower()

        wait_until("the driver tells that it is busy", reported, LONG)
        assert up.get("pod", "clamped-1")["metadata"].get("deletionTimestamp")
        assert any(handle in name for name in up.get("node", "worker-1")["status"]["volumesInUse"])
        assert set(attachments(up, "clamped")) == {"worker-1"}
        assert up.phase("clamped-2") == "Pending"
        assert len(loops_of(handle)) == 1
    moved(up, "clamped")


def test_two_pods_share_an_rwo_volume_on_one_node(up: Up) -> None:
    handle = first_pod(up, "both")
    pod(up, "both-2", "both", "worker-1")
    up.wait_running("both-2", LONG)
    assert read(up, "both-2") == "kept"
    up.kubectl("exec", "both-2", "--", "sh", "-c", "echo seen > /data/line")
    assert read(up, "both-1") == "seen"
    (device,) = loops_of(handle)

    def mounted(part: str) -> int:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return sum(f"/dev/{device} " in line and part in line for line in lines)

    assert (mounted("/globalmount"), mounted("kubernetes.io~csi")) == (1, 2)
    up.kubectl("delete", "pod", "both-1")
    wait_until("the first one is unmounted", lambda: mounted("kubernetes.io~csi") == 1, LONG)
    assert mounted("/globalmount") == 1
    assert read(up, "both-2") == "seen"
    up.kubectl("delete", "pod", "both-2")
    wait_until("the disk is given back", lambda: loops_of(handle) == [], LONG)
    up.kubectl("delete", "pvc", "both")


ATTACK = """
apiVersion: v1
kind: Pod
metadata: {name: attack}
spec:
  nodeName: worker-1
  terminationGracePeriodSeconds: 0
  initContainers:
    - name: evil
      image: busybox
      command: [sh, -c, "ln -s / /data/root"]
      volumeMounts: [{name: v, mountPath: /data}]
  containers:
    - name: c
      image: busybox
      command: [sh, -c, "cat /out/etc/passwd; exec sleep 1000"]
      volumeMounts: [{name: v, mountPath: /out, subPath: root}]
  volumes:
    - name: v
      persistentVolumeClaim: {claimName: attacked}
"""


def test_a_sub_path_that_is_a_link_to_the_root_exposes_nothing(up: Up) -> None:
    up.apply(CLAIM % {"claim": "attacked"})
    up.apply(ATTACK)
    wait_until(
        "it is refused",
        lambda: (
            'failed to prepare subPath for volumeMount "v" of container "c"'
            in up.kubectl("describe", "pod", "attack")
        ),
        LONG,
    )
    assert str(up.directory) not in up.kubectl("describe", "pod", "attack")
    assert "root:" not in up.kubectl("logs", "attack", "-c", "c", check=False)
    up.kubectl("delete", "pod", "attack")
    up.kubectl("delete", "pvc", "attacked")
