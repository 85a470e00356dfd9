"""Helm itself, where there is one: the chart is well-formed, and renders to what deploy/kubernetes holds."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import peers
from tools import deploy

pytestmark = pytest.mark.peer("helm")

OTHERS: list[dict[str, Any]] = [
    {},
    {"ebs": {"enabled": False}, "snapshotController": {"enabled": False}},
    {"efs": {"enabled": False}, "classes": {"enabled": False}, "image": {"tag": "1.2"}},
    {
        "imagePullSecrets": [{"name": "pull"}],
        "ebs": {
            "fencer": False,
            "endpoint": "http://disks.example.com",
            "controller": {"serviceAccountAnnotations": {"role": "arn:1"}},
        },
    },
]


def helm(directory: Path, *arguments: str) -> str:
    home = {"HOME": str(directory), "PATH": "/usr/bin:/bin"}
    command = [peers.path("helm"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=home)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_chart_is_well_formed(tmp_path: Path) -> None:
    assert "0 chart(s) failed" in helm(tmp_path, "lint", "--strict", str(deploy.CHART))


@pytest.mark.parametrize("values", OTHERS)
def test_helm_renders_what_we_render(tmp_path: Path, values: dict[str, Any]) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    words = ["template", "volplane-csi", str(deploy.CHART), "-n", deploy.NAMESPACE, "-f", str(file)]
    words += ["--kube-version", "1.35"]  # a helm of `make peers` does not know of any
    made = [o for o in yaml.safe_load_all(helm(tmp_path, *words)) if o]
    assert _sorted(made) == _sorted(deploy.objects(values))


def _sorted(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(objects, key=lambda o: (o["kind"], o["metadata"]["name"]))
