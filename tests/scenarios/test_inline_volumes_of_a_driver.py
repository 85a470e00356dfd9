"""Ctrl-C with inline volumes of a user's driver: its pods go before the driver, and nothing stays mounted."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.support import inline_driver
from tests.support.up import Up
from volplane.cluster import power_loss
from volplane.host import Host
from volplane.host.mounts import read_table

pytestmark = [pytest.mark.root, pytest.mark.slow]

POD = """
apiVersion: v1
kind: Pod
metadata: {name: app}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: busybox, command: [sleep, "1000"], volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, csi: {driver: inline.example.com}}]
"""


async def release(up: Up) -> None:
    """Give the machine back what the driver has kept."""
    host = Host()
    await power_loss.lose_power(up.directory / "n" / "1", host)
    await host.close()


def run_and_stop(word: str = "") -> tuple[int, str, list[str]]:
    """The exit code, the output, and the inline volumes that are left mounted."""
    with Up("--driver-command", inline_driver.command_line(word), nodes=1) as up:
        up.apply(POD)
        up.wait_running("app")
        up.send(signal.SIGINT)
        up.wait_until_exit(90)
        left = [e.target for e in read_table().under(str(up.directory)) if "kubernetes.io~csi" in e.target]
        asyncio.run(release(up))
        assert up.process is not None
        return up.process.returncode, up.log(), left


def test_a_driver_stops_after_the_last_user_of_its_inline_volumes() -> None:
    code, output, left = run_and_stop()
    assert (code, left) == (0, [])
    assert output.rstrip().endswith("stopped")


def test_what_stays_mounted_is_listed_and_fails_the_command() -> None:
    code, output, left = run_and_stop("keeps")
    assert code == 1
    assert len(left) == 1
    assert f"mount {left[0]}" in output
