"""The liveness probe in front of a driver that is ready, not ready, broken, or gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.loops.inprocess import running
from tests.support.scripted import ScriptedDriver
from volplane import sdk
from volplane.csi.outcome import CallError, Code
from volplane.sidecars import liveness
from volplane.sidecars.liveness import LivenessOptions
from volplane.web import HttpClient


class UnreadyDriver(ScriptedDriver):
    mood: bool | CallError = True

    async def probe(self) -> bool:
        if isinstance(self.mood, CallError):
            raise self.mood
        return self.mood


@pytest.fixture
def place() -> Iterator[Path]:
    with TemporaryDirectory() as directory:
        yield Path(directory)


async def test_healthz_says_what_the_driver_says(place: Path) -> None:
    driver, address = UnreadyDriver(), str(place / "csi.sock")
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    settings = LivenessOptions(csi_address=address, health_port=0, probe_timeout=1.0)
    async with running(liveness.run(settings, started=port.set_result)):
        await asyncio.sleep(0.05)
        assert not port.done()  # waits for the driver
        async with sdk.DriverServer(driver, address, grace=0.1):
            http = HttpClient(f"http://127.0.0.1:{await port}")
            try:
                assert await ask(http) == (200, "ok")
                driver.mood = False
                assert await ask(http) == (500, "driver responded but is not ready")
                driver.mood = CallError(Code.FAILED_PRECONDITION, "no licence")
                status, text = await ask(http)
                assert status == 500
                assert "no licence" in text
                metrics = await http.request("GET", "/metrics")
                assert metrics.status == 200
                assert (await http.request("GET", "/other")).status == 404
            finally:
                await http.close()
        http = HttpClient(f"http://127.0.0.1:{await port}")
        try:
            assert (await ask(http))[0] == 500  # the driver is gone
        finally:
            await http.close()


async def ask(http: HttpClient) -> tuple[int, str]:
    answer = await http.request("GET", "/healthz")
    return answer.status, answer.body.decode()
