"""Upstream's csi-sanity on the EBS driver, both services on one socket."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from volplane.cloud import Instance, Settings, serving
from volplane.drivers.ebs import Account, Place, Whole, connect
from volplane.host import Host, NodePaths
from volplane.sdk import Server
from volplane.store.memory import MemoryStore

CACHE = Path("~/.cache/volplane/bin").expanduser()
GIB = 1 << 30


def csi_sanity() -> str:
    found = shutil.which("csi-sanity") or shutil.which("csi-sanity", path=str(CACHE))
    if found is None:
        pytest.skip("csi-sanity is not installed")
    return found


class Paths(NodePaths):
    """Mount points as csi-sanity chooses them; only the disks are in a directory of this test."""

    def real(self, path: str) -> str:
        return f"{self.root}/dev/{path.removeprefix('/dev/')}" if path.startswith("/dev/") else path


@pytest.mark.root
@pytest.mark.slow
async def test_csi_sanity_finds_nothing(tmp_path: Path) -> None:
    program, host, paths = csi_sanity(), Host(), Paths(str(tmp_path / "n"))
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
                    program,
                    f"--csi.endpoint=unix://{tmp_path}/csi.sock",
                    f"--csi.mountdir={tmp_path}/mount",
                    f"--csi.stagingdir={tmp_path}/staging",
                    f"--csi.testvolumesize={GIB}",
                    f"--csi.testvolumeexpandsize={2 * GIB}",
                    "--ginkgo.no-color",
                ],
                timeout=300,
                check=False,
                env=dict(os.environ),
            )
    await host.close()
    output = done.output
    assert done.code == 0, output[-20_000:]
    passed = re.search(r"(\d+) Passed \| 0 Failed", output)
    assert passed, output[-2_000:]
    assert int(passed[1]) > 50
