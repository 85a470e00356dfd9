"""An ordinary user runs the demo, a cluster, and tests of a driver, in a user namespace."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.ordinary_user import USER, OrdinaryUser, make_ordinary_user
from tests.support.up import VOLPLANE, wait_until
from volplane.base import user_namespace
from volplane.base.locks import find_holder

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "04-your-own-driver"
DRIVER = f"PYTHONPATH={ROOT / 'src'} {sys.executable} driver.py $CSI_ENDPOINT $NODE_ID $SHARED_DIR"

OBJECTS = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {accessModes: [ReadWriteOnce], storageClassName: standard, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox
    command: [sh, -c, "echo kept > /var/lib/mine/file; echo x > /scratch/x; sleep infinity"]
    volumeMounts:
    - {name: data, mountPath: /var/lib/mine}
    - {name: scratch, mountPath: /scratch}
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data}}
  - {name: scratch, emptyDir: {medium: Memory}}
---
apiVersion: v1
kind: Pod
metadata: {name: other-user}
spec:
  automountServiceAccountToken: false
  securityContext: {runAsUser: 1000}
  containers: [{name: main, image: busybox, command: [id]}]
---
apiVersion: v1
kind: Pod
metadata: {name: group}
spec:
  automountServiceAccountToken: false
  securityContext: {fsGroup: 1000}
  containers: [{name: main, image: busybox, command: [id], volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, emptyDir: {}}]
"""

root = pytest.mark.root
slow = pytest.mark.slow


@pytest.fixture
def user() -> Iterator[OrdinaryUser]:
    yield from make_ordinary_user()


@root
@slow
def test_the_demo_runs_without_root(user: OrdinaryUser) -> None:
    shown = user.volplane("demo")
    assert "Without root there are no loop devices: the volume is a shared directory" in shown
    written, read = (
        [line.partition(":")[2].strip() for line in shown.splitlines() if "written on worker" in line[-200:]][
            -1
        ],
        next(line.partition(":")[2].strip() for line in shown.splitlines() if "read on worker" in line),
    )
    assert written == read
    assert "No mount, loop device, network or process of the demo is left" in shown


def events(user: OrdinaryUser, directory: Path) -> str:
    found: dict[str, Any] = json.loads(user.kubectl(directory, "get", "events", "-o", "json"))
    return "\n".join(f"{e['involvedObject']['name']}: {e['message']}" for e in found["items"])


def has_event(user: OrdinaryUser, directory: Path, text: str) -> bool:
    return text in events(user, directory)


@pytest.fixture
def _mount_in_var() -> Iterator[None]:
    """The machine has a file system below /var, as most have; a pod mounts a volume there."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
        yield
        subprocess.run(["umount", place], check=True)


@root
@slow
@pytest.mark.peer("kubectl")
@pytest.mark.usefixtures("_mount_in_var")
def test_a_cluster_lives_without_root(user: OrdinaryUser) -> None:
    directory = user.home / ".volplane"
    user.volplane("up", "--nodes", "1", "--detach")
    user.kubectl(directory, "apply", "-f", "-", stdin=OBJECTS)
    user.kubectl(directory, "wait", "--for=condition=Ready", "pod/user", "--timeout=240s")
    read = ("exec", "user", "--", "cat", "/var/lib/mine/file", "/scratch/x")
    assert user.kubectl(directory, *read).split() == ["kept", "x"]
    for text in (
        "disk: ",
        "take the StorageClass efs, or start the cluster as root (sudo volplane up)",
        "group: MountVolume.SetUp failed",
        "its user namespace has no group 1000: give your user ranges in /etc/subuid and /etc/subgid",
        "its user namespace has no such user or group; give your user ranges in",
    ):
        wait_until(f"an event says: {text}", partial(has_event, user, directory, text), 30)

    # Killed with its supervisor: the containers run on, with their mounts, and the next start joins them.
    names = ("supervisor.lock", "up.lock")
    for pid in [find_holder(str(directory / name)) for name in names]:
        assert pid
        os.kill(pid, signal.SIGKILL)
    shown = user.volplane("fsck", code=3)
    assert "container/user/main runs although the cluster does not" in shown
    assert "mount/" in shown
    user.volplane("start")
    assert user.kubectl(directory, *read).split() == ["kept", "x"], "the memory of the pod was lost"
    jsonpath = "jsonpath={.status.containerStatuses[0].restartCount}"
    assert user.kubectl(directory, "get", "pod", "user", "-o", jsonpath) == "0"

    archive = user.home / "backup.tar"
    user.volplane("backup", str(archive), "--disks")
    user.volplane("stop")
    assert "everything agrees" in user.volplane("fsck")
    user.volplane("delete", "--yes")
    assert not directory.exists()
    user.volplane("restore", str(archive))
    user.volplane("up", "--nodes", "1", "--detach")
    user.kubectl(directory, "wait", "--for=condition=Ready", "pod/user", "--timeout=240s")
    assert user.kubectl(directory, *read).split() == ["kept", "x"]
    user.volplane("delete", "--yes")


@root
@slow
def test_a_driver_of_directories_is_tested_without_root(user: OrdinaryUser) -> None:
    example = user.home / "example"
    shutil.copytree(EXAMPLE, example, ignore=shutil.ignore_patterns("__pycache__"))
    focus = "^(identity/name|publish/data)$"
    words = ("test-driver", "--driver-command", DRIVER, "--focus", focus)
    shown = user.run(VOLPLANE, *words, cwd=example)
    assert "2 passed, 0 failed" in shown
    flags = ("-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={example}")
    shown = user.run(
        VOLPLANE,
        "unshare",
        *(sys.executable, "-m", "pytest", *flags, "--csi-driver-command", DRIVER),
        *("-k", "keeps_its_data or retried"),
        cwd=example,
    )
    assert "2 passed" in shown
    shown = user.run(
        sys.executable, "-m", "pytest", *flags, "--csi-driver-command", DRIVER, "-rs", cwd=example
    )
    assert "volplane unshare pytest" in shown


@root
def test_a_driver_of_disks_is_told_what_is_missing(user: OrdinaryUser) -> None:
    program = (
        "from volplane.host import devices\n"
        "open('image', 'w').close()\n"
        "try: devices.loop_attach('image')\n"
        "except PermissionError as error: print(error)"
    )
    shown = user.volplane("unshare", sys.executable, "-c", program)
    assert "without root there are no loop devices; use a volume that is a directory, or run it with" in shown


# A user namespace in which no other one can be created, as on a machine that forbids them.
FORBIDDEN = f"""
import ctypes, os, sys
assert ctypes.CDLL(None).unshare(0x10000000) == 0
for path, text in (("setgroups", "deny"), ("uid_map", "{USER} {USER} 1"), ("gid_map", "{USER} {USER} 1")):
    with open(f"/proc/self/{{path}}", "w") as file:
        file.write(text)
with open("/proc/sys/user/max_user_namespaces", "w") as file:
    file.write("0")
os.execv(sys.argv[1], sys.argv[1:])
"""


@root
@pytest.mark.parametrize("words", [("demo",), ("up", "--nodes", "1"), ("unshare", "id")])
def test_a_machine_without_user_namespaces_says_what_to_do(
    words: tuple[str, ...], user: OrdinaryUser
) -> None:
    shown = user.run(sys.executable, "-c", FORBIDDEN, sys.executable, VOLPLANE, *words, code=1)
    assert "without root it needs a user namespace, which this machine does not permit" in shown
    assert "user.max_user_namespaces is too low" in shown
    assert "or run the command as root, with sudo" in shown
    assert "Traceback" not in shown
    assert not (user.home / ".volplane").exists()


@pytest.mark.parametrize(
    ("path", "value", "number", "text"),
    [
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", errno.EPERM, "unprivileged_userns_clone is 0"),
        ("/proc/sys/user/max_user_namespaces", "0", errno.EPERM, "max_user_namespaces is too low"),
        ("", "", errno.ENOSPC, "max_user_namespaces is too low"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            errno.EACCES,
            "AppArmor forbids it (kernel.apparmor_restrict_unprivileged_userns is 1).\n  Set it to 0",
        ),
        ("", "", errno.EPERM, "Start the container with --security-opt seccomp=unconfined, or run the"),
        ("", "", errno.ENOSYS, "this kernel has none"),
    ],
)
def test_each_refusal_has_its_reason(
    path: str, value: str, number: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_namespace, "_read", lambda asked: value if asked == path else "1000")
    shown = user_namespace.describe_refusal(OSError(number, os.strerror(number)))
    assert text in shown
    assert "with sudo" in shown


@root
@pytest.mark.peer("newuidmap")
def test_ranges_of_users_are_mapped(tmp_path: Path) -> None:
    """As the account nobody: newuidmap asks for the name of the user."""
    ranges = tmp_path / "ranges"
    ranges.write_text("nobody:700000:65536\n")
    steps = (
        f"mount --bind {ranges} /etc/subuid",
        f"mount --bind {ranges} /etc/subgid",
        "exec setpriv --reuid 65534 --regid 65534 --clear-groups"
        f" {VOLPLANE} unshare cat /proc/self/uid_map /proc/self/gid_map",
    )
    script = " && ".join(steps)
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nobody cannot run it here: {done.stderr[-300:]}")
    wanted = ["0", "65534", "1", "1", "700000", "65536"]
    assert done.stdout.split() == wanted * 2
