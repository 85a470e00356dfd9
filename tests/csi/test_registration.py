"""Both ends of plugin registration on a real socket."""

from __future__ import annotations

from pathlib import Path

from volplane.csi import registration
from volplane.csi.registration import Info, Notice, Registrar

DRIVER = "ebs.csi.aws.com"


async def test_a_driver_is_announced_and_hears_its_fate(tmp_path: Path) -> None:
    endpoint = "/var/lib/kubelet/plugins/ebs.csi.aws.com/csi.sock"
    async with Registrar(str(tmp_path), DRIVER, endpoint) as registrar:
        assert registrar.path == str(tmp_path / "ebs.csi.aws.com-reg.sock")
        assert await registration.ask(registrar.path) == Info("CSIPlugin", DRIVER, endpoint, ("1.0.0",))
        await registration.notify(registrar.path, registered=True)
        await registration.notify(registrar.path, registered=False, error="no such node")
        assert await registrar.notice() == Notice(True)
        assert await registrar.notice() == Notice(False, "no such node")
    assert not (tmp_path / "ebs.csi.aws.com-reg.sock").exists()


async def test_an_empty_endpoint_is_the_socket_itself(tmp_path: Path) -> None:
    async with Registrar(str(tmp_path), DRIVER, "") as registrar:
        assert (await registration.ask(registrar.path)).endpoint == registrar.path
