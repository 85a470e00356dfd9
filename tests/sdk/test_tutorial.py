"""The code of docs/write-a-driver.md is a driver: it runs, and csi-sanity finds nothing."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import peers
from volplane.csi import v1
from volplane.csi.client import CsiChannel
from volplane.host import Host

pytestmark = pytest.mark.root

PAGE = Path(__file__).parent.parent.parent / "docs" / "write-a-driver.md"
GIB = 1 << 30


def code(kind: str) -> str:
    found = re.findall(r"^```python([^\n]*)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    pieces = [text for said, text in found if said.strip() == kind]
    assert pieces
    return "\n".join(pieces)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "directories.py"
    path.write_text(code(""))
    return path


def test_the_page_is_written_as_we_write(program: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=110", str(program)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_the_test_on_the_page_passes(program: Path) -> None:
    program.write_text(program.read_text().replace("__main__", "never") + code("test"))
    subprocess.run([sys.executable, str(program)], check=True, env=dict(os.environ))


async def serving(program: Path, socket: str) -> asyncio.subprocess.Process:
    root = str(program.parent / "root")
    process = await asyncio.create_subprocess_exec(sys.executable, str(program), root, socket)
    async with CsiChannel(socket) as channel:
        await channel.ready(60)
    return process


async def end(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(process.wait(), 60)


async def test_the_driver_serves_and_names_what_it_offers(program: Path, tmp_path: Path) -> None:
    socket = str(tmp_path / "csi.sock")
    process = await serving(program, socket)
    try:
        async with CsiChannel(socket) as channel:
            info = await channel.call("GetPluginInfo", v1.GetPluginInfoRequest())
            assert info.name == "directories.example.com"
            reply = await channel.call("ControllerGetCapabilities", v1.ControllerGetCapabilitiesRequest())
            rpc = v1.ControllerServiceCapability.RPC
            offered = [c.rpc.type for c in reply.capabilities]
            assert offered == [rpc.CREATE_DELETE_VOLUME, rpc.CREATE_DELETE_SNAPSHOT]
    finally:
        await end(process)
    assert not os.path.exists(socket)  # noqa: ASYNC240


@pytest.mark.slow
@pytest.mark.peer("csi-sanity")
async def test_csi_sanity_finds_nothing(program: Path, tmp_path: Path) -> None:
    socket, host = str(tmp_path / "csi.sock"), Host()
    process = await serving(program, socket)
    try:
        done = await host.run(
            [
                peers.path("csi-sanity"),
                f"--csi.endpoint=unix://{socket}",
                f"--csi.mountdir={tmp_path}/mount",
                f"--csi.stagingdir={tmp_path}/staging",
                f"--csi.testvolumesize={GIB}",
                "--ginkgo.no-color",
            ],
            timeout=300,
            check=False,
            env=dict(os.environ),
        )
    finally:
        await end(process)
        await host.close()
    assert done.code == 0, done.output[-20_000:]
    passed = re.search(r"(\d+) Passed \| 0 Failed", done.output)
    assert passed, done.output[-2000:]
    assert int(passed[1]) >= 30
