"""Some specs of Kubernetes' own storage suite (External.Storage) with the EBS driver, as docs/kubernetes-e2e.md says."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import peers
from tests.support.up import Up, environment

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.peer("kubectl"),
    pytest.mark.peer("e2e.test"),
]
DEFINITION = """
StorageClass: {FromExistingClassName: gp3}
DriverInfo:
  Name: ebs.csi.aws.com
  SupportedSizeRange: {Min: 1Gi}
  SupportedFsType: {"": {}, xfs: {}}
  Capabilities: {persistence: true, block: true, fsGroup: true, exec: true}
"""
# A group that could be one of this machine, a subpath that leads out of its volume, scripts, a raw disk.
SPECS = {
    "fsgroupchangepolicy (OnRootMismatch)[LinuxOnly], pod created with an initial fsgroup, new pod fsgroup "
    "applied to volume contents": "Dynamic PV (default fs)",
    "subPath should fail if subpath with backstepping is outside the volume": "Dynamic PV (default fs)",
    "volumes should allow exec of files on the volume": "Dynamic PV (xfs)",
    "volumes should store data": "Dynamic PV (block volmode)",
}


@pytest.fixture
def up() -> Iterator[Up]:
    with Up(nodes=2) as up:
        yield up
        assert up.stop() == 0, up.log()
        assert up.leftovers() == {}


def test_specs_of_the_storage_suite_pass(up: Up, tmp_path: Path) -> None:
    definition, report = tmp_path / "driver.yaml", tmp_path / "report.json"
    definition.write_text(DEFINITION)
    command = [
        peers.path("e2e.test"),
        f"--kubeconfig={up.kubeconfig}",
        f"--storage.testdriver={definition}",
        f"--ginkgo.focus={'|'.join(map(_pattern, SPECS))}",
        f"--ginkgo.json-report={report}",
    ]
    env = {**environment(), "PATH": f"{peers.BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-20_000:]
    (suite,) = json.loads(report.read_text())
    passed = [spec["LeafNodeText"] for spec in suite["SpecReports"] if spec["State"] == "passed"]
    assert len([text for text in passed if text]) >= len(SPECS)
