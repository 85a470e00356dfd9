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
    monkeypatch.setattr(driver_process, "START", 0.3)
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
