"""A check of real clusters: healthy, killed, and damaged."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import machine
from tests.support.power_cut import fill, is_pod_running, objects
from tests.support.up import VOLPLANE, Up

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer("kubectl")]


def fsck(up: Up, *words: str, code: int, stdin: str = "") -> str:
    done = subprocess.run(
        [VOLPLANE, "fsck", "--data-dir", str(up.directory), *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def find(up: Up, *, code: int = 3) -> list[dict[str, Any]]:
    findings: list[dict[str, Any]] = json.loads(fsck(up, "-o", "json", code=code))["findings"]
    return findings


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    directory = tmp_path_factory.mktemp("fsck") / "d"
    directory.mkdir(0o700)
    made = Up(nodes=1, directory=directory)
    made.output = directory.with_name("up.log")
    try:
        with made:
            fill(made)
            yield made
    finally:
        machine.purge(directory)


def test_a_running_cluster_agrees_and_is_not_repaired(up: Up) -> None:
    assert "everything agrees" in fsck(up, code=0)
    leftover = up.directory / "cloud" / "disks" / "vol-unknown.img"
    leftover.write_text("data")
    assert "everything agrees" in fsck(up, "--repair", "--yes", code=0)
    assert leftover.exists(), "a running disk service may be creating it"
    leftover.unlink()
    assert is_pod_running(up)


def test_what_a_killed_cluster_leaves_is_removed_after_a_question(up: Up) -> None:
    up.kill()
    before = machine.leftovers(up.directory)
    assert before.keys() == {"mounts", "loop devices", "processes", "networks"}
    shown = fsck(up, code=3)
    assert "container/user/main runs although the cluster does not" in shown
    assert "repair with: volplane fsck --repair --data-dir" in shown
    assert "Repair" in fsck(up, "--repair", code=130, stdin="n\n")
    assert machine.leftovers(up.directory).keys() == before.keys()
    assert ", 0 left" in fsck(up, "--repair", code=0, stdin="y\n")
    assert machine.leftovers(up.directory) == {}
    assert "everything agrees" in fsck(up, code=0)
    known = {("Pod", "user"), ("PersistentVolumeClaim", "data"), ("PersistentVolumeClaim", "shared")}
    up.start()
    up.wait("the pod runs again with its data", lambda: is_pod_running(up))
    assert known <= objects(up)
    assert find(up, code=0) == []


def change_record(path: Path, prefix: str, value: bytes | None) -> str:
    """Change the newest row of the first key with the prefix. None: remove the key. Returns the key."""
    with sqlite3.connect(path) as database:
        (key,) = database.execute(
            "SELECT key FROM log WHERE key LIKE ? ORDER BY revision DESC LIMIT 1", (f"{prefix}%",)
        ).fetchone()
        if value is None:
            database.execute("DELETE FROM log WHERE key = ?", (key,))
        else:
            database.execute("UPDATE log SET value = ? WHERE key = ?", (value, key))
    database.close()
    return str(key)


def test_damage_is_found_and_only_leftovers_are_repaired(up: Up) -> None:
    assert up.stop() == 0
    disks = up.directory / "cloud" / "disks"
    configmap = change_record(up.directory / "state.db", "/registry/configmaps/default/words", b"}")
    images = sorted(disks.glob("*.img"), key=lambda path: path.stat().st_blocks)
    kept, lost = [path.stem for path in images]
    change_record(up.directory / "cloud" / "state.db", f"/cloud/volumes/{lost}", None)
    (disks / f"{kept}.img").rename(disks / f"{kept}.img.away")
    (disks / "vol-blank.img").touch()
    (up.directory / "pki" / ".ca.crt.77.abc.tmp").write_text("half")
    certificate = up.directory / "pki" / "apiserver.crt"
    certificate.write_text("damaged")
    (point,) = (up.directory / "efs" / ".points").glob("*.json")
    directory = json.loads(point.read_text())
    shared = up.directory / "efs" / directory["file_system"] / directory["path"]
    shared.rename(shared.with_name("away"))

    found = {each["about"]: each for each in find(up)}
    errors = {about for about, each in found.items() if each["severity"] == "error"}
    (pv,) = {about for about in errors if about.startswith("pv/")}
    assert f"the record of its disk {lost} is missing, claim default/" in found[pv]["message"]
    assert errors == {
        f"record{configmap}",
        pv,
        f"disk/{kept}",
        f"directory/{directory['file_system']}::{directory['id']}",
        "certificate/apiserver.crt",
    }
    assert found.keys() - errors == {
        f"file/cloud/disks/{lost}.img",
        "file/cloud/disks/vol-blank.img",
        "file/pki/.ca.crt.77.abc.tmp",
    }
    fsck(up, "--repair", "--yes", code=3)
    assert not (disks / "vol-blank.img").exists()
    assert not list((up.directory / "pki").glob(".*.tmp"))
    left = {each["about"] for each in find(up)}
    assert left == {*errors, f"file/cloud/disks/{lost}.img.orphaned"}
    assert os.path.getsize(disks / f"{lost}.img.orphaned") == 1 << 30


def test_a_damaged_database_is_named(up: Up) -> None:
    state = up.directory / "state.db"
    content = bytearray(state.read_bytes())
    content[4096:20_000] = os.urandom(20_000 - 4096)
    state.write_bytes(content)
    (damaged,) = [each for each in find(up) if each["about"] == "store/state.db"]
    assert "is damaged" in damaged["message"]
    assert "restore a backup" in damaged["message"]
