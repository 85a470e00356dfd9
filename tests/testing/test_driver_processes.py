"""A driver that does not come up says why, or we do."""

from __future__ import annotations

from pathlib import Path

import pytest

from volplane.cluster.external_driver import Command
from volplane.csi.call_interceptor import CallInterceptor
from volplane.host import Host
from volplane.testing import driver_process
from volplane.testing.driver_process import DriverProcess, DriverStartError


@pytest.mark.parametrize(
    ("word", "has_socket"), [("", False), ("${CSI_SOCKET}", True)], ids=["without a socket", "with a socket"]
)
async def test_the_error_of_a_driver_that_does_not_listen_has_a_hint(
    word: str, has_socket: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_process, "START_TIMEOUT", 0.3)
    host = Host()
    command = Command(("/bin/sh", "-c", "echo waiting; sleep 1000", word), {}, "/")
    one = DriverProcess("node-1", command, tmp_path, host, mode="all", interceptor=CallInterceptor())
    try:
        with pytest.raises(
            DriverStartError, match=r"nothing listens at \S+/csi\.sock after 0\.3 s.*: waiting"
        ) as why:
            await one.start()
        assert ("its command does not use $CSI_ENDPOINT" in str(why.value)) is not has_socket
    finally:
        await one.stop()
        await host.close()


async def test_a_process_that_a_driver_has_left_behind_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_process, "START_TIMEOUT", 0.5)
    host, file = Host(), tmp_path / "pid"
    orphan = f"setsid sh -c 'echo $$$$ > {file}; exec sleep 1000' & sleep 1000"
    command = Command(("/bin/sh", "-c", orphan), {}, "/")
    one = DriverProcess("node-1", command, tmp_path, host, mode="all", interceptor=CallInterceptor())
    try:
        with pytest.raises(DriverStartError):
            await one.start()
        pid = int(file.read_text())
        assert is_running(pid)
        await one.kill()
        assert not is_running(pid)  # it could hold the socket for which the next process is waited
    finally:
        await one.stop()
        await host.close()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_wait_for_a_driver_that_does_not_listen_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver_process, "START_TIMEOUT", 0.3)
    monkeypatch.setattr(driver_process, "REPORT_AFTER", 0.1)
    host, command = Host(), Command(("/bin/sleep", "1000"), {}, "/")
    one = DriverProcess("node-1", command, tmp_path, host, mode="all", interceptor=CallInterceptor())
    try:
        with pytest.raises(DriverStartError):
            await one.start()
        assert f"node-1: the driver runs, and nothing listens at {one.socket}" in caplog.text
    finally:
        await one.stop()
        await host.close()
