"""The registrar between a driver and a kubelet that this test plays."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.loops.inprocess import running, until
from tests.support import scripted
from tests.support.scripted import NAME
from volplane import sdk
from volplane.csi import registration
from volplane.sidecars import registrar
from volplane.sidecars.registrar import RegistrarOptions, RegistrationFailed
from volplane.sidecars.registrar.service import check_registration

ENDPOINT = "/var/lib/kubelet/plugins/test/csi.sock"


@pytest.fixture
def place() -> Iterator[Path]:
    with TemporaryDirectory() as directory:
        yield Path(directory)


def settings(place: Path) -> RegistrarOptions:
    return RegistrarOptions(
        csi_address=str(place / "csi.sock"),
        kubelet_registration_path=ENDPOINT,
        plugin_registration_path=str(place / "registry"),
    )


def is_there(path: str) -> bool:
    return os.path.exists(path)


async def wait_for_socket(place: Path) -> str:
    socket = place / "registry" / f"{NAME}-reg.sock"

    async def there() -> bool:
        return socket.exists()

    await until(there)
    return str(socket)


async def test_it_announces_the_driver_where_the_kubelet_looks(place: Path) -> None:
    async with (
        sdk.DriverServer(scripted.driver(), str(place / "csi.sock")),
        running(registrar.run(settings(place))),
    ):
        socket = await wait_for_socket(place)
        assert stat.S_IMODE(os.stat(socket).st_mode) == 0o600
        info = await registration.get_registration_info(socket)
        assert info == registration.RegistrationInfo("CSIPlugin", NAME, ENDPOINT, ("1.0.0",))
        await registration.notify_registration(socket, registered=True)
        assert await check_registration(NAME, socket) == (200, "ok")
        assert (await check_registration("other", socket))[0] == 500
    assert not is_there(socket)
    assert (await check_registration(NAME, socket))[0] == 404


async def test_it_waits_for_its_driver(place: Path) -> None:
    async with running(registrar.run(settings(place))):
        await asyncio.sleep(0.05)
        async with sdk.DriverServer(scripted.driver(), str(place / "csi.sock")):
            await wait_for_socket(place)


async def test_a_refusal_ends_it(place: Path) -> None:
    async with sdk.DriverServer(scripted.driver(), str(place / "csi.sock")):
        task = asyncio.create_task(registrar.run(settings(place)))
        socket = await wait_for_socket(place)
        await registration.notify_registration(
            socket, registered=False, error="a driver of that name is here"
        )
        with pytest.raises(RegistrationFailed, match="a driver of that name is here"):
            await task
        assert not is_there(socket)


def test_it_must_be_told_where_the_kubelet_finds_the_driver() -> None:
    with pytest.raises(ValueError, match="kubelet-registration-path"):
        RegistrarOptions()
    with pytest.raises(ValueError, match="only one of"):
        RegistrarOptions(kubelet_registration_path="/x", http_endpoint=":1", health_port=2)
