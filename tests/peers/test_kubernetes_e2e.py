"""Some specs of Kubernetes' own storage suite (External.Storage), run as docs/kubernetes-e2e.md says."""

from __future__ import annotations

import json
import os
import re
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
    pytest.mark.peer("agnhost"),
]
DEFINITION = """
StorageClass: {FromExistingClassName: gp3}
DriverInfo:
  Name: ebs.csi.aws.com
  SupportedSizeRange: {Min: 1Gi}
  SupportedFsType: {"": {}, xfs: {}}
  Capabilities: {persistence: true, block: true, fsGroup: true, exec: true}
"""
# A group that could be one of this machine, subpaths, scripts in a volume, a raw disk.
SPECS = (
    "Dynamic PV .default fs.*OnRootMismatch.*pod created with an initial fsgroup, new pod",
    "Dynamic PV .default fs.*subPath should support existing directory",
    "Dynamic PV .xfs.*volumes should allow exec of files on the volume",
    "Dynamic PV .block volmode.*volumes should store data",
)


@pytest.fixture
def up() -> Iterator[Up]:
    with Up("--image", f"registry.k8s.io/e2e-test-images/agnhost={peers.path('agnhost')}", nodes=2) as up:
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
        f"--ginkgo.focus=External.Storage.*({'|'.join(SPECS)})",
        f"--ginkgo.json-report={report}",
        "--ginkgo.no-color",
    ]
    env = {**environment(), "PATH": f"{peers.BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-20_000:]
    (suite,) = json.loads(report.read_text())
    run = [
        spec for spec in suite["SpecReports"] if spec["LeafNodeType"] == "It" and spec["State"] == "passed"
    ]
    names = [" ".join((*spec["ContainerHierarchyTexts"], spec["LeafNodeText"])) for spec in run]
    assert [spec for spec in SPECS if not any(re.search(spec, name) for name in names)] == [], names
