"""`volplane export logs`: everything for a bug report, and no secrets."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import machine
from tests.support.up import VOLPLANE, Up
from volplane.cluster.data_directory import DataDirectory

SECRET = """
apiVersion: v1
kind: Secret
metadata: {name: password}
stringData: {password: do-not-show-this}
---
apiVersion: v1
kind: Pod
metadata: {name: speaker}
spec:
  containers: [{name: main, image: busybox, command: [sh, -c, echo hello from the pod; sleep infinity]}]
"""


def export(*words: str, code: int = 0) -> str:
    done = subprocess.run(
        [VOLPLANE, "export", "logs", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    directory = tmp_path / "d"
    directory.mkdir(0o700)
    made = Up(nodes=1, directory=directory)
    made.output = directory / "run.log"
    yield made
    machine.purge(directory)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.peer("kubectl")
def test_logs_objects_and_the_machine_are_exported_without_secrets(up: Up, tmp_path: Path) -> None:
    target = tmp_path / "logs"
    with up:
        up.apply(SECRET)
        up.wait_running("speaker")
        up.wait("it has spoken", lambda: "hello" in up.kubectl("logs", "speaker"))
        (up.directory / "run" / "scheduler.log").write_text("page: http://x/?token=do-not-show-this&a=b\n")
        assert export("--data-dir", str(up.directory), str(target)).split() == [str(target)]
        files = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
        (log,) = [name for name in files if "speaker" in name]
        assert log.startswith("nodes/worker-1/default_speaker_")
        assert "hello from the pod" in (target / log).read_text()
        assert (target / "run/scheduler.log").read_text() == "page: http://x/?token=<redacted>&a=b\n"
        assert {"run/scheduler.log", "machine.json", "fsck.json", "objects/pods.json"} <= files
        (secret,) = [
            item
            for item in json.loads((target / "objects/secrets.json").read_text())["items"]
            if item["metadata"]["name"] == "password"
        ]
        assert secret["data"] == {"password": "<redacted>"}
        (pod,) = [
            item
            for item in json.loads((target / "objects/pods.json").read_text())["items"]
            if item["metadata"]["name"] == "speaker"
        ]
        assert pod["kind"] == "Pod"
        assert pod["metadata"]["uid"] == up.get("pod", "speaker")["metadata"]["uid"]
        assert json.loads((target / "machine.json").read_text())["mounts"]
        whole = b"".join(path.read_bytes() for path in target.rglob("*") if path.is_file())
        assert b"do-not-show-this" not in whole
        assert b"PRIVATE KEY" not in whole
        assert up.memory().secret_key.encode() not in whole
    assert "is not empty" in export("--data-dir", str(up.directory), str(target), code=1)
    summary = json.loads(export("--data-dir", str(up.directory), "-o", "json", str(tmp_path / "again")))
    assert summary["directory"] == str(tmp_path / "again")
    assert summary["problems"] == []


def test_what_cannot_be_exported_is_named_and_nothing_half_is_left(tmp_path: Path) -> None:
    assert "no cluster in" in export("--data-dir", str(tmp_path / "none"), str(tmp_path / "x"), code=1)
    layout = DataDirectory(tmp_path / "d")
    layout.create()
    layout.lock.touch()
    layout.state.write_bytes(b"no database" * 1000)
    shown = export("--data-dir", str(layout.directory), str(tmp_path / "x"))
    assert f"not exported: {layout.state}: file is not a database" in shown
    (tmp_path / "file").touch()
    assert "cannot create" in export(
        "--data-dir", str(layout.directory), str(tmp_path / "file" / "x"), code=1
    )
