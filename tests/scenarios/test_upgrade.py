"""This version starts on a data directory of an older one: nothing is lost, and nothing is left."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import machine
from tests.support.power_cut import cut_power, fill, is_pod_running, objects
from tests.support.up import VOLPLANE, Up
from volplane.cluster import data_version
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.data_version import read_version

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer("kubectl")]

ROOT = Path(__file__).parents[2]
VERSIONS = "src/volplane/cluster/data_version.py"  # the older version does not have it


def git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source tree of the older version."""
    target = tmp_path_factory.mktemp("older") / "tree"
    target.mkdir()
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a checkout: it has no older version")
    try:
        if git("rev-parse", "--is-shallow-repository").strip() == b"true":
            pytest.skip("this is a shallow clone: it has no older version")
        added = git("log", "--diff-filter=A", "--format=%H", "--", VERSIONS).decode().split()
        archive = git("archive", f"{added[-1]}~1", "src")
    except (OSError, subprocess.CalledProcessError) as error:
        told = getattr(error, "stderr", b"").decode(errors="replace").strip()
        pytest.skip(f"git cannot read the older version: {told or error}")
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive, check=True)
    env = {**os.environ, "PYTHONPATH": str(target / "src")}
    shown = subprocess.run(
        [sys.executable, "-c", "import volplane; print(volplane.__path__[0])"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.stdout.startswith(str(target)), shown.stderr
    return target / "src"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    directory = tmp_path / "d"
    directory.mkdir(0o700)
    made = Up(nodes=1, directory=directory)
    made.output = tmp_path / "up.log"
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()
    machine.purge(directory)


def start_older(up: Up, source: Path) -> None:
    """Start the older version, with one pod and a snapshot."""
    up.program = (sys.executable, "-m", "volplane", "up")
    up.start({"PYTHONPATH": str(source)})
    fill(up)
    up.kubectl("create", "configmap", "kept")
    assert not (up.directory / "version.json").exists()


@pytest.mark.parametrize("ending", ["stop", "kill", "power cut"])
def test_nothing_is_lost_in_an_upgrade(ending: str, up: Up, older: Path) -> None:
    start_older(up, older)
    before = objects(up)
    if ending == "stop":
        assert up.stop() == 0
    elif ending == "kill":
        up.kill()
    else:
        cut_power(up)
    shown = upgrade_check(up)
    assert "0" in shown.split("files of version")[1][:3]
    assert "the next start changes: the version is recorded in version.json" in shown
    up.program = (VOLPLANE, "up")
    up.start()
    up.wait("the pod runs with its data", lambda: is_pod_running(up))
    assert objects(up) >= before
    assert ("ConfigMap", "kept") in objects(up)
    assert read_version(DataDirectory(up.directory)).version == data_version.NEWEST
    assert "the next start changes" not in upgrade_check(up)
    assert up.stop() == 0, up.log()
    assert not up.leftovers()


def upgrade_check(up: Up, code: int = 0) -> str:
    done = subprocess.run(
        [VOLPLANE, "upgrade-check", "--data-dir", str(up.directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    return done.stdout


def test_what_this_version_cannot_read_is_found_before_the_start(up: Up, tmp_path: Path) -> None:
    with up:
        up.kubectl("create", "configmap", "odd")
        assert up.stop() == 0
    with sqlite3.connect(up.directory / "state.db") as database:
        changed = database.execute(
            "UPDATE log SET value = ? WHERE key LIKE '%configmaps/default/odd'",
            (b'"name":"odd"},"data":["no","map"]}',),
        )
        assert changed.rowcount == 1
        database.execute("UPDATE log SET key = '/registry/foos.example.com/x' WHERE key LIKE '%classes%/io2'")
    database.close()
    (up.directory / "start.json").write_text(json.dumps({"arguments": ["--nodes=1", "--colour=red"]}))
    (up.directory / "brought.json").write_text(json.dumps({"manifests": [str(tmp_path / "gone.yaml")]}))
    shown = upgrade_check(up, 3)
    assert "error: record/registry/configmaps/default/odd cannot be read by this version: Expected" in shown
    assert "objects of a kind that this version does not serve" in shown
    assert "an option of the last start is not accepted: No such option '--colour'" in shown
    assert f"{tmp_path}/gone.yaml does not exist" in shown
    assert "it can start" not in shown
