"""Both ends of plugin registration on a real socket."""

from __future__ import annotations

from pathlib import Path

from volplane.csi import registration
from volplane.csi.registration import RegistrationInfo, RegistrationNotice, RegistrationServer

DRIVER = "ebs.csi.aws.com"


async def test_a_driver_is_announced_and_hears_its_fate(tmp_path: Path) -> None:
    endpoint = "/var/lib/kubelet/plugins/ebs.csi.aws.com/csi.sock"
    async with RegistrationServer(str(tmp_path), DRIVER, endpoint) as registrar:
        assert registrar.path == str(tmp_path / "ebs.csi.aws.com-reg.sock")
        assert await registration.get_registration_info(registrar.path) == RegistrationInfo(
            "CSIPlugin", DRIVER, endpoint, ("1.0.0",)
        )
        await registration.notify_registration(registrar.path, registered=True)
        await registration.notify_registration(registrar.path, registered=False, error="no such node")
        assert await registrar.next_notice() == RegistrationNotice(True)
        assert await registrar.next_notice() == RegistrationNotice(False, "no such node")
    assert not (tmp_path / "ebs.csi.aws.com-reg.sock").exists()


async def test_an_empty_endpoint_is_the_socket_itself(tmp_path: Path) -> None:
    async with RegistrationServer(str(tmp_path), DRIVER, "") as registrar:
        assert (await registration.get_registration_info(registrar.path)).endpoint == registrar.path
