"""A copied data directory is a separate cluster: it never touches the original's containers or disks."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import machine
from tests.support.power_cut import fill, is_pod_running, objects
from tests.support.up import VOLPLANE, Up, wait_until
from volplane.base import directory_identity
from volplane.host import devices
from volplane.node.containers import records
from volplane.node.containers.launcher.kernel import start_time
from volplane.node.copied_directory import ASIDE, discard_original_state

pytestmark = [pytest.mark.root, pytest.mark.slow]


def cluster(directory: Path) -> Up:
    directory.mkdir(0o700, exist_ok=True)
    up = Up(nodes=1, directory=directory)
    up.output = directory.with_name(f"{directory.name}.log")
    return up


class Belongings:
    """What a running cluster has on the machine, and that must not change."""

    def __init__(self, up: Up) -> None:
        self.mounts = machine.mounts(up.directory)
        self.loops = {d: f for d, f in devices.loops().items() if f.startswith(f"{up.directory}/")}
        self.interfaces = machine.interfaces(up.directory)
        found = records.load_all(str(up.directory / "n" / "1" / "containers"))
        self.containers = {(r.started.pid, r.started.pid_start) for r in found if r.is_alive}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Belongings) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(vars(self))


def restarts(up: Up) -> int:
    (status,) = up.get("pod", "user")["status"]["containerStatuses"]
    count: int = status["restartCount"]
    return count


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A cluster at work, which nothing may touch."""
    directory = tmp_path_factory.mktemp("original") / "d"
    try:
        with cluster(directory) as up:
            fill(up)
            before = Belongings(up)
            assert before.containers
            assert before.loops
            yield up
            assert Belongings(up) == before
            assert restarts(up) == 0
    finally:
        machine.purge(directory)


@pytest.fixture
def copy(original: Up, tmp_path: Path) -> Iterator[Up]:
    """What `cp` makes of it while it runs."""
    directory = tmp_path / "copy"
    subprocess.run(["cp", "-a", "--sparse=always", original.directory, directory], check=True)
    up = cluster(directory)
    yield up
    if up.process is not None and up.process.poll() is None:
        up.kill()
    machine.purge(directory)


def test_a_copy_runs_beside_the_original_and_touches_nothing_of_it(original: Up, copy: Up) -> None:
    before = Belongings(original)
    with copy:
        assert Belongings(original) == before
        assert copy.memory().port != original.memory().port
        assert objects(copy) >= objects(original)
        copy.wait("the copy runs a pod of its own", lambda: restarts(copy) == 1 and is_pod_running(copy))
        own = Belongings(copy)
        assert own.containers
        assert not own.containers & before.containers
        assert set(own.loops).isdisjoint(before.loops)
        copy.kubectl("delete", "pod", "user")
        assert Belongings(original) == before
        assert copy.stop() == 0, copy.log()
    assert not (left := copy.leftovers()), f"{left}\n{copy.log()}"
    assert "Traceback" not in copy.log(1000)
    assert Belongings(original) == before
    assert original.kubectl("exec", "user", "--", "cat", "/data/file").strip() == "kept"


def test_a_copy_whose_disk_is_missing_does_not_find_the_originals(original: Up, copy: Up) -> None:
    """The link to it was copied, and the original's disk has the same id."""
    before = Belongings(original)
    for image in (copy.directory / "cloud" / "disks").glob("*.img"):
        image.unlink()
    with copy:
        states = {v["State"] for v in copy.aws("describe-volumes")["Volumes"]}
        assert states == {"error"}
        copy.describe("pod", "user", "FailedMount", "has not appeared as")
        assert not Belongings(copy).containers
        assert Belongings(original) == before


def test_a_moved_or_restored_directory_keeps_its_port(tmp_path: Path) -> None:
    up = cluster(tmp_path / "before")
    with up:
        port = up.memory().port
    up.directory.rename(tmp_path / "after")
    with cluster(tmp_path / "after") as moved:
        assert moved.memory().port == port
        assert "is a copy" not in moved.log()
    subprocess.run(["cp", "-a", moved.directory, tmp_path / "backup"], check=True)
    shutil.rmtree(moved.directory)
    (tmp_path / "backup").rename(moved.directory)
    with cluster(moved.directory) as restored:
        assert "is a copy" in restored.log()
        assert restored.memory().port == port
    assert not restored.leftovers()


# --- how a copy is detected


def test_a_copy_is_told_by_its_inode_and_only_once(tmp_path: Path) -> None:
    asked: list[directory_identity.DirectoryOrigin] = []
    first = tmp_path / "first"
    first.mkdir()
    assert (
        directory_identity.claim_directory(str(first), asked.append) == directory_identity.DirectoryOrigin()
    )
    assert (
        directory_identity.claim_directory(str(first), asked.append) == directory_identity.DirectoryOrigin()
    )
    shutil.copytree(first, tmp_path / "second")
    beside = directory_identity.DirectoryOrigin(is_copy=True, original=str(first))
    assert directory_identity.claim_directory(str(tmp_path / "second"), asked.append) == beside
    assert (
        directory_identity.claim_directory(str(tmp_path / "second"), asked.append)
        == directory_identity.DirectoryOrigin()
    )
    shutil.copytree(first, tmp_path / "third")
    shutil.rmtree(first)
    assert directory_identity.claim_directory(
        str(tmp_path / "third"), asked.append
    ) == directory_identity.DirectoryOrigin(is_copy=True)
    assert asked == [beside, directory_identity.DirectoryOrigin(is_copy=True)]


def test_another_boot_may_number_devices_anew(tmp_path: Path) -> None:
    directory_identity.claim_directory(str(tmp_path), lambda _: None)
    file = tmp_path / directory_identity.NAME
    known = json.loads(file.read_bytes())
    file.write_text(json.dumps({**known, "device": known["device"] + 1, "boot": "another"}))
    assert not directory_identity.claim_directory(str(tmp_path), lambda _: None).is_copy
    file.write_text(json.dumps({**known, "device": known["device"] + 1}))
    assert directory_identity.claim_directory(str(tmp_path), lambda _: None).is_copy


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Path]]:
    """Two mounted file systems; what is on top of them has the same inode."""
    mounted: list[Path] = []
    try:
        for name in ("first", "second"):
            image, target = tmp_path / f"{name}.img", tmp_path / name
            with image.open("wb") as file:
                file.truncate(8 << 20)
            subprocess.run(["mkfs.ext4", "-q", image], check=True)
            target.mkdir()
            subprocess.run(["mount", "-o", "loop", image, target], check=True)
            mounted.append(target)
        yield mounted
    finally:
        for target in mounted:
            subprocess.run(["umount", target], check=True)


def test_the_copy_of_a_whole_disk_is_told_after_another_boot(disks: list[Path]) -> None:
    first, second = disks
    assert first.stat().st_ino == second.stat().st_ino
    directory_identity.claim_directory(str(first), lambda _: None)
    file = first / directory_identity.NAME
    file.write_text(json.dumps({**json.loads(file.read_bytes()), "boot": "another", "device": 1}))
    shutil.copy(file, second)
    beside = directory_identity.DirectoryOrigin(is_copy=True, original=str(first))
    assert directory_identity.claim_directory(str(second), lambda _: None) == beside
    assert (
        directory_identity.claim_directory(str(first), lambda _: None) == directory_identity.DirectoryOrigin()
    )


def test_a_place_without_the_id_of_its_file_system_is_told_by_its_inode(tmp_path: Path) -> None:
    directory_identity.claim_directory(str(tmp_path), lambda _: None)
    file = tmp_path / directory_identity.NAME
    known = json.loads(file.read_bytes())
    del known["filesystem"]
    for record, copied in ((known, False), ({**known, "inode": known["inode"] + 1}, True)):
        file.write_text(json.dumps(record))
        assert directory_identity.claim_directory(str(tmp_path), lambda _: None).is_copy is copied


def test_what_a_copy_of_a_copy_has_moved_aside_stays(tmp_path: Path) -> None:
    pods, plugins = tmp_path / "pods", tmp_path / "plugins"
    volumes = {"u/volumes/kubernetes.io~csi": "u/volumes", "u/volumeDevices": "u/volumeDevices"}
    moved = {pods / made: target for made, target in volumes.items()}
    moved[plugins / "kubernetes.io/csi"] = "plugins"
    for content in ("first", "second", "third"):
        for directory in moved:
            directory.mkdir(parents=True)
            (directory / "data").write_text(content)
        discard_original_state(str(tmp_path), str(pods), str(plugins))
        assert not any(directory.exists() for directory in moved)
    for target in moved.values():
        asides = [tmp_path / name / target / "data" for name in (ASIDE, f"{ASIDE}-2", f"{ASIDE}-3")]
        assert [file.read_text() for file in asides] == ["first", "second", "third"]


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]"])
def test_a_place_that_cannot_be_read_is_set_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / directory_identity.NAME).write_bytes(content)
    assert (
        directory_identity.claim_directory(str(tmp_path), lambda _: None)
        == directory_identity.DirectoryOrigin()
    )
    assert (tmp_path / f"{directory_identity.NAME}.corrupt").read_bytes() == content


def test_a_record_counts_only_while_its_own_directory_is_locked(tmp_path: Path) -> None:
    """A copied record names the process of the original, which lives."""
    sleeper = subprocess.Popen(["sleep", "infinity"])
    try:
        original = tmp_path / "c1"
        original.mkdir()
        start = start_time(sleeper.pid)
        spec = {"id": "c1", "pod_uid": "u", "pod_name": "p", "namespace": "n", "name": "c", "image": "i"}
        made = {
            "spec": spec,
            "pid": sleeper.pid,
            "pid_start": start,
            "shim": sleeper.pid,
            "shim_start": start,
            "boot": directory_identity.boot_id(),
            "started_at": "2026-01-02T03:04:05Z",
        }
        (original / "container.json").write_text(json.dumps(made))
        shutil.copytree(original, tmp_path / "copy")
        lock = os.open(original, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            running, copied = records.load(str(original)), records.load(str(tmp_path / "copy"))
            assert running is not None
            assert copied is not None
            assert running.is_alive
            assert running.state().running
            assert not copied.is_alive
            assert not copied.state().running
        finally:
            os.close(lock)
    finally:
        sleeper.kill()
        sleeper.wait()


# --- one process for a node's directory


def test_a_second_node_on_one_root_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    cluster_at = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [cluster_at],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [context],
                "current-context": "c",
            }
        )
    )
    root = tmp_path / "root"
    command = [VOLPLANE, "node", "--root-dir", str(root), "--kubeconfig", str(config), "--pod-network=host"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(
            "it has its root", lambda: (root / "node.lock").exists() and (root / "node.lock").read_text()
        )
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 1
        assert second.stderr.strip().splitlines()[-1] == (
            f"volplane: the node's directory {root} is in use by process {first.pid}; "
            "stop it first, or choose another --root-dir"
        )
    finally:
        first.send_signal(signal.SIGTERM)
        first.wait(60)
        machine.purge(tmp_path)
