"""Upstream's csi-sanity on the EBS driver, both services on one socket."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import peers
from volplane.cloud import Instance, Settings, serving
from volplane.drivers.ebs import Account, Place, Whole, connect
from volplane.host import Host, NodePaths
from volplane.sdk import Server
from volplane.sdk.capabilities import Offer
from volplane.store.memory import MemoryStore

GIB = 1 << 30

# Why csi-sanity skips, and the call or claim that would have made it run.
REASONS = {
    "ControllerGetVolumeHealth not supported": "ControllerGetVolumeHealth",
    "ControllerListVolumeHealth not supported": "ControllerListVolumeHealth",
    "ControllerModifyVolume not supported": "ControllerModifyVolume",
    "ControllerPublishVolume.readonly field not supported": "PUBLISH_READONLY",
    "CreateSnapshot not supported": "CreateSnapshot",
    "DeleteSnapshot not supported": "DeleteSnapshot",
    "GetSnapshot not supported": "GetSnapshot",
    "GroupControllerService not supported": "CreateVolumeGroupSnapshot",
    "ListSnapshots not supported": "ListSnapshots",
    "Modify Volume not supported": "ControllerModifyVolume",
    "Modify volume not supported": "ControllerModifyVolume",
    "NodeGetStorageHealth not supported": "NodeGetStorageHealth",
    "NodeGetVolumeHealth not supported": "NodeGetVolumeHealth",
    "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported": "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS",
    "Snapshot not supported": "CreateSnapshot",
    "Volume Cloning not supported": "CLONE_VOLUME",
}


class Paths(NodePaths):
    """Mount points as csi-sanity chooses them; only the disks are in a directory of this test."""

    def real(self, path: str) -> str:
        return f"{self.root}/dev/{path.removeprefix('/dev/')}" if path.startswith("/dev/") else path


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.peer("csi-sanity")
async def test_csi_sanity_finds_nothing(tmp_path: Path) -> None:
    host, paths, report = Host(), Paths(str(tmp_path / "n")), tmp_path / "report.json"
    settings = Settings(
        data_dir=str(tmp_path),
        access_key="key",
        secret_key="secret",
        instances=(Instance("i-1", "us-east-1a", paths.dev),),
    )
    async with serving(settings, host, MemoryStore()) as address:
        ec2 = await connect(Account(address, access_key="key", secret_key="secret"), host)
        driver = Whole(ec2, Place("i-1", "us-east-1a"), host, paths)
        async with Server(driver, str(tmp_path / "csi.sock")):
            done = await host.run(
                [
                    peers.path("csi-sanity"),
                    f"--csi.endpoint=unix://{tmp_path}/csi.sock",
                    f"--csi.mountdir={tmp_path}/mount",
                    f"--csi.stagingdir={tmp_path}/staging",
                    f"--csi.testvolumesize={GIB}",
                    f"--csi.testvolumeexpandsize={2 * GIB}",
                    "--csi.testnodevolumeattachlimit",
                    "--ginkgo.no-color",
                    f"--ginkgo.json-report={report}",
                ],
                timeout=300,
                check=False,
                env=dict(os.environ),
            )
    await host.close()
    assert done.code == 0, done.output[-20_000:]
    told = _specs(report)
    states = Counter(spec["State"] for spec in told)
    assert states.keys() <= {"passed", "skipped", "pending"}  # pending: switched off in csi-sanity itself
    assert states["passed"] > 50
    offer = Offer(driver)
    for spec in told:
        if spec["State"] == "skipped":
            wanted = REASONS[spec["Failure"]["Message"]]
            assert wanted not in offer.methods | offer.claims, spec["LeafNodeText"]


def _specs(report: Path) -> list[dict[str, Any]]:
    suites = json.loads(report.read_text())
    return [spec for suite in suites for spec in suite["SpecReports"] if spec["LeafNodeType"] == "It"]
