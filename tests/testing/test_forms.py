"""Upstream's example driver in every form in which a driver can be named: command, file, manifests."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import peers

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer("hostpathplugin")]

ROOT = Path(__file__).parents[2]
CASES = ["identity/name", "publish/data", "snapshot/one moment", "twice/CreateVolume"]
FLAGS = "--endpoint=$CSI_ENDPOINT --nodeid=$NODE_ID --statedir=$STATE_DIR"
FILE = """
command: {program} {flags}
name: hostpath.csi.k8s.io
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: own}}
provisioner: hostpath.csi.k8s.io
"""


def words(form: str, place: Path) -> list[str]:
    program = shlex.quote(peers.path("hostpathplugin"))
    if form == "command":
        return ["--driver-command", f"{program} {FLAGS}"]
    if form == "file":
        (place / "driver.yaml").write_text(FILE.format(program=program, flags=FLAGS))
        return ["--driver", "driver.yaml"]
    (file,) = peers.manifests("hostpathplugin", "kubernetes-1.20/hostpath/csi-hostpath-plugin.yaml")
    mapped = f"k8s.gcr.io/sig-storage/hostpathplugin={program} --statedir=$STATE_DIR"
    return ["--manifest", str(file.parent), "--image", mapped]


@pytest.mark.parametrize("form", ["command", "file", "manifests"])
def test_a_driver_is_tested_however_it_is_named(form: str, tmp_path: Path) -> None:
    focus = f"^({'|'.join(CASES)})$"
    named = words(form, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "volplane", "test-driver", *named, "--focus", focus, "--json", "r.json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reported = json.loads((tmp_path / "r.json").read_text())
    assert reported["driver"] == "hostpath.csi.k8s.io"
    assert {case["name"]: case["verdict"] for case in reported["cases"]} == dict.fromkeys(CASES, "passed")
