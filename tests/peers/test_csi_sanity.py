"""Upstream's csi-sanity on our drivers, both services of each on one socket."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import peers
from volplane.cloud import CloudInstance, CloudOptions, serve_endpoint
from volplane.drivers import ebs, efs
from volplane.drivers.ebs import AwsAccount, EbsNodeConfig, connect_ec2
from volplane.host import Host, NodePaths
from volplane.sdk import Driver, DriverServer
from volplane.sdk.capabilities import ServedCapabilities
from volplane.store.memory import MemoryStore

GIB = 1 << 30
PAGE = Path(__file__).parents[2] / "docs" / "drivers.md"

# Why csi-sanity skips, and the call or claim that would have made it run.
REASONS = {
    "Controller Publish, UnpublishVolume not supported": "ControllerPublishVolume",
    "ControllerGetVolumeHealth not supported": "ControllerGetVolumeHealth",
    "ControllerListVolumeHealth not supported": "ControllerListVolumeHealth",
    "ControllerModifyVolume not supported": "ControllerModifyVolume",
    "ControllerPublishVolume not supported": "ControllerPublishVolume",
    "ControllerPublishVolume.readonly field not supported": "PUBLISH_READONLY",
    "ControllerUnpublishVolume not supported": "ControllerUnpublishVolume",
    "CreateSnapshot not supported": "CreateSnapshot",
    "DeleteSnapshot not supported": "DeleteSnapshot",
    "GetSnapshot not supported": "GetSnapshot",
    "GroupControllerService not supported": "CreateVolumeGroupSnapshot",
    "ListSnapshots not supported": "ListSnapshots",
    "Modify Volume not supported": "ControllerModifyVolume",
    "Modify volume not supported": "ControllerModifyVolume",
    "NodeExpandVolume not supported": "NodeExpandVolume",
    "NodeGetStorageHealth not supported": "NodeGetStorageHealth",
    "NodeGetVolumeHealth not supported": "NodeGetVolumeHealth",
    "NodeStageVolume not supported": "NodeStageVolume",
    "NodeUnstageVolume not supported": "NodeUnstageVolume",
    "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported": "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS",
    "Snapshot not supported": "CreateSnapshot",
    "Volume Cloning not supported": "CLONE_VOLUME",
}


class Paths(NodePaths):
    """Mount points as csi-sanity chooses them; only the disks are in a directory of this test."""

    def real(self, path: str) -> str:
        return f"{self.root}/dev/{path.removeprefix('/dev/')}" if path.startswith("/dev/") else path


class OwnPaths(NodePaths):
    def real(self, path: str) -> str:
        return path


pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer("csi-sanity")]


async def test_the_driver_of_disks(tmp_path: Path) -> None:
    host, paths = Host(), Paths(str(tmp_path))
    settings = CloudOptions(
        data_dir=str(tmp_path),
        access_key="key",
        secret_key="secret",
        instances=(CloudInstance("i-1", "us-east-1a", paths.dev),),
    )
    async with serve_endpoint(settings, host, MemoryStore()) as address:
        ec2 = await connect_ec2(AwsAccount(address, access_key="key", secret_key="secret"), host)
        driver = ebs.EbsAllInOneDriver(ec2, EbsNodeConfig("i-1", "us-east-1a"), host, paths)
        passed, skipped = await finds_nothing(driver, host, tmp_path, "--csi.testnodevolumeattachlimit")
    await host.close()
    assert passed >= 85
    assert skipped == documented_skips()["ebs.csi.aws.com"]


async def test_the_driver_of_shared_directories(tmp_path: Path) -> None:
    host = Host()
    driver = efs.EfsAllInOneDriver(
        efs.AccessPointStore(str(tmp_path / "efs")), "n1", host, OwnPaths(str(tmp_path))
    )
    passed, skipped = await finds_nothing(driver, host, tmp_path)
    await host.close()
    assert passed >= 40
    assert skipped == documented_skips()["efs.csi.aws.com"]


def documented_skips() -> dict[str, set[str]]:
    """What docs/drivers.md says is skipped, by driver."""
    lines = (line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `"))
    rows = [[cell.strip() for cell in line] for line in lines if len(line) == 5]
    return {
        name: {row[1].strip("`") for row in rows if row[column] == "skipped"}
        for column, name in ((2, "ebs.csi.aws.com"), (3, "efs.csi.aws.com"))
    }


async def finds_nothing(driver: Driver, host: Host, directory: Path, *more: str) -> tuple[int, set[str]]:
    """No failure, and nothing skipped that the driver offers; how many passed, what made others skip."""
    report = directory / "report.json"
    async with DriverServer(driver, str(directory / "csi.sock")):
        done = await host.run(
            [
                peers.path("csi-sanity"),
                f"--csi.endpoint=unix://{directory}/csi.sock",
                f"--csi.mountdir={directory}/mount",
                f"--csi.stagingdir={directory}/staging",
                f"--csi.testvolumesize={GIB}",
                f"--csi.testvolumeexpandsize={2 * GIB}",
                *more,
                "--ginkgo.no-color",
                f"--ginkgo.json-report={report}",
            ],
            timeout=300,
            check=False,
            env=dict(os.environ),
        )
    assert done.code == 0, done.output[-20_000:]
    specs = _specs(report)
    states = Counter(spec["State"] for spec in specs)
    assert states.keys() <= {"passed", "skipped", "pending"}  # pending: switched off in csi-sanity itself
    offer = ServedCapabilities(driver)
    skipped = {REASONS[spec["Failure"]["Message"]] for spec in specs if spec["State"] == "skipped"}
    assert skipped.isdisjoint(offer.methods | offer.extra_capabilities)
    return states["passed"], skipped


def _specs(report: Path) -> list[dict[str, Any]]:
    suites = json.loads(report.read_text())
    return [spec for suite in suites for spec in suite["SpecReports"] if spec["LeafNodeType"] == "It"]
