"""A cluster is backed up while pods write and volumes come and go, restored beside it, and compared."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.security.test_copied_directories import Belongings
from tests.support import machine
from tests.support.up import VOLPLANE, Up, wait_until
from volplane.cloud.model import CloudVolume
from volplane.cluster.data_directory import DataDirectory
from volplane.store import StoreRecord
from volplane.store.sqlite.database import Database

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer("kubectl")]

# `steady` has data that nobody changes; `busy` is written and synced all the time.
OBJECTS = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: steady}
spec: {accessModes: [ReadWriteOnce], storageClassName: gp3, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: busy}
spec: {accessModes: [ReadWriteOnce], storageClassName: gp3, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: shared}
spec: {accessModes: [ReadWriteMany], storageClassName: efs, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox
    command:
    - sh
    - -c
    - |
      if [ ! -e /steady/random ]; then
        head -c 3000000 /dev/urandom > /steady/random; ln /steady/random /steady/same; mkfifo /steady/pipe
        sync -f /steady; cp /steady/random /shared/random; touch /shared/written
      fi
      n=$(ls /busy | grep -c '^[0-9]')
      while true; do echo $n > /busy/$n; sync -f /busy; echo $n > /shared/$n; n=$((n+1)); done
    volumeMounts:
    - {name: steady, mountPath: /steady}
    - {name: busy, mountPath: /busy}
    - {name: shared, mountPath: /shared}
  volumes:
  - {name: steady, persistentVolumeClaim: {claimName: steady}}
  - {name: busy, persistentVolumeClaim: {claimName: busy}}
  - {name: shared, persistentVolumeClaim: {claimName: shared}}
"""

CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: churn-{}}}
spec: {{accessModes: [ReadWriteOnce], storageClassName: standard, resources: {{requests: {{storage: 1Gi}}}}}}
---
"""


@contextmanager
def churn(up: Up) -> Iterator[None]:
    """Claims with disks are created and deleted."""
    end = threading.Event()

    def run() -> None:
        turn = 0
        while not end.is_set():
            manifest = "".join(CLAIM.format(turn * 3 + index) for index in range(3))
            up.apply(manifest)
            if turn:
                names = [f"pvc/churn-{(turn - 1) * 3 + index}" for index in range(3)]
                up.kubectl("delete", "--wait=false", *names)
            turn += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    directory = tmp_path_factory.mktemp("original") / "d"
    directory.mkdir(0o700)
    up = Up(nodes=1, directory=directory)
    up.output = directory.with_name("up.log")
    try:
        with up:
            up.apply(OBJECTS)
            up.wait("the pod has written", lambda: list(directory.glob("efs/fs-*/*/written")))
            yield up
    finally:
        machine.purge(directory)


def efs(directory: Path) -> Path:
    (found,) = (directory / "efs" / "fs-00000001").iterdir()
    return found


def back_up(up: Up, target: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [VOLPLANE, "backup", str(target), "--disks", "--data-dir", str(up.directory)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def back_up_until(
    up: Up, target: Path, test: Callable[[subprocess.CompletedProcess[str]], bool], **env: str
) -> subprocess.CompletedProcess[str]:
    """Repeat a backup until a pod writes at the right moments: it may not run for a while."""

    def attempt() -> subprocess.CompletedProcess[str] | None:
        target.unlink(missing_ok=True)
        done = back_up(up, target, **env)
        return done if test(done) else None

    done: subprocess.CompletedProcess[str] = wait_until("the pod writes during a backup", attempt, 60)
    return done


def restore(archive: Path, target: Path) -> DataDirectory:
    subprocess.run([VOLPLANE, "restore", str(archive), "--data-dir", str(target)], check=True, timeout=300)
    return DataDirectory(target)


def read_records(path: Path, revision: int = 0) -> tuple[int, list[StoreRecord]]:
    """The records of a database at a revision, or at its newest one."""
    database = Database(str(path))
    try:
        revision = revision or database.revision()
        return revision, database.list("", after="", limit=0, revision=revision).records
    finally:
        database.close()


def volumes_of(records: list[StoreRecord]) -> dict[str, CloudVolume]:
    found = [r.value for r in records if r.key.startswith("/cloud/volumes/")]
    volumes = [msgspec.json.decode(value, type=CloudVolume) for value in found]
    return {volume.id: volume for volume in volumes}


def bound_disks(records: list[StoreRecord]) -> dict[str, str]:
    """Claim → disk, of all Bound volumes of the disk service. A Released volume may have lost its disk: the
    volume is deleted after the disk.
    """
    found = {}
    for record in records:
        if "/persistentvolumes/" in record.key:
            stored = b'{"metadata":{' + record.value  # how objects are stored: see volplane.api.codec
            volume: dict[str, Any] = msgspec.json.decode(stored)
            spec = volume["spec"]
            if spec["csi"]["driver"] == "ebs.csi.aws.com" and volume["status"].get("phase") == "Bound":
                found[spec["claimRef"]["name"]] = spec["csi"]["volumeHandle"]
    return found


@contextmanager
def mounted(image: Path, where: Path) -> Iterator[Path]:
    where.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(where)], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)


def check_sequence(directory: Path, *, torn: int) -> int:
    """Files 0, 1, 2, … without a gap, each with its number; the last `torn` ones may be empty."""
    numbers = sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())
    assert numbers == list(range(len(numbers)))
    for number in numbers[: len(numbers) - torn]:
        assert (directory / str(number)).read_text() == f"{number}\n"
    return len(numbers)


def test_a_backup_under_load_is_consistent(original: Up, tmp_path: Path) -> None:
    for turn in range(3):
        archive, target = tmp_path / f"{turn}.tar", tmp_path / f"r{turn}"
        written = len(list(efs(original.directory).iterdir())) - 2
        with churn(original):
            done = back_up(original, archive)
        assert done.returncode == 0, done.stderr
        layout = restore(archive, target)

        revision, objects = read_records(layout.state)
        assert objects == read_records(original.directory / "state.db", revision)[1]
        revision, cloud = read_records(layout.cloud / "state.db")
        assert cloud == read_records(original.directory / "cloud" / "state.db", revision)[1]

        volumes, disks = volumes_of(cloud), bound_disks(objects)
        assert {"steady", "busy"} <= disks.keys()
        assert set(disks.values()) <= volumes.keys(), "a volume has no record of its disk"
        for volume in volumes.values():
            size = (layout.cloud / "disks" / f"{volume.id}.img").stat().st_size
            assert size == volume.shape.size << 30

        image = layout.cloud / "disks" / f"{disks['busy']}.img"
        subprocess.run(["e2fsck", "-p", str(image)], check=False, capture_output=True)  # replays the journal
        assert subprocess.run(["e2fsck", "-fn", str(image)], capture_output=True).returncode == 0
        with mounted(image, tmp_path / "busy") as busy:
            assert check_sequence(busy, torn=1) >= written - 1
        shared = efs(layout.directory)
        assert check_sequence(shared, torn=1) >= written - 1
        with mounted(layout.cloud / "disks" / f"{disks['steady']}.img", tmp_path / "steady") as steady:
            content = (efs(original.directory) / "random").read_bytes()
            assert (steady / "random").read_bytes() == content == (shared / "random").read_bytes()
            assert (steady / "random").samefile(steady / "same")
            assert (steady / "pipe").is_fifo()


def test_a_restored_cluster_runs_beside_the_original(original: Up, tmp_path: Path) -> None:
    original.kubectl("create", "configmap", "before", "--from-literal=a=b")
    assert back_up(original, tmp_path / "b.tar").returncode == 0
    original.kubectl("create", "configmap", "after", "--from-literal=a=b")
    target = tmp_path / "restored"
    restore(tmp_path / "b.tar", target)
    before = Belongings(original)
    restored = Up(nodes=1, directory=target)
    restored.output = tmp_path / "restored.log"
    try:
        with restored:
            restored.wait("its pod writes", lambda: is_writing(restored, target))
            names = restored.kubectl("get", "configmaps", "-o", "name").split()
            assert "configmap/before" in names
            assert "configmap/after" not in names
            sums = [
                up.kubectl("exec", "user", "--", "sha256sum", "/steady/random") for up in (original, restored)
            ]
            assert sums[0] == sums[1]
            assert restored.memory().port != original.memory().port
            assert Belongings(original) == before
            restored.kubectl("delete", "pod", "user")
            assert restored.stop() == 0, restored.log()
        assert not restored.leftovers()
        assert Belongings(original) == before
        assert is_writing(original, original.directory)
    finally:
        machine.purge(target)


def is_writing(up: Up, directory: Path) -> bool:
    if up.phase("user") != "Running":
        return False
    before = len(list(efs(directory).iterdir()))
    return bool(wait_until("more files", lambda: len(list(efs(directory).iterdir())) > before, 10))


def test_a_disk_that_is_written_all_the_time_is_frozen_for_a_moment(original: Up, tmp_path: Path) -> None:
    passed = tmp_path / "passed"
    done = back_up_until(
        original,
        tmp_path / "b.tar",
        lambda _: "backup:frozen" in passed.read_text().split(),
        VOLPLANE_FAILPOINT_LOG=str(passed),
    )
    assert done.returncode == 0, done.stderr
    assert is_writing(original, original.directory)


def test_a_killed_backup_does_not_leave_a_disk_frozen(original: Up, tmp_path: Path) -> None:
    back_up_until(
        original,
        tmp_path / "b.tar",
        lambda done: done.returncode == -signal.SIGKILL,
        VOLPLANE_FAILPOINT="backup:frozen",
    )
    assert is_writing(original, original.directory)
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_written_all_the_time_is_named(original: Up, tmp_path: Path) -> None:
    original.apply(
        CLAIM.format("device").replace("{storage: 1Gi}}", "{storage: 1Gi}}, volumeMode: Block")
        + """
apiVersion: v1
kind: Pod
metadata: {name: device}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox
    command: [sh, -c, "while true; do dd if=/dev/zero of=/dev/data bs=256k count=64 oflag=direct; done"]
    volumeDevices: [{name: data, devicePath: /dev/data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: churn-device}}]
"""
    )
    original.wait_running("device")
    try:
        done = back_up_until(original, tmp_path / "b.tar", lambda done: done.returncode == 1)
        assert "is written all the time, and has no mounted file system" in done.stderr
        assert list(tmp_path.iterdir()) == []
    finally:
        original.kubectl("delete", "pod/device", "pvc/churn-device")
