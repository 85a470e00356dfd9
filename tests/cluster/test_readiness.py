"""A driver is ready when all its containers run, and go on running."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from tests.support import staging_driver
from volplane.cluster import external_driver, readiness
from volplane.cluster.errors import ClusterNotReady
from volplane.cluster.external_driver import DeploymentShape
from volplane.cluster.single_process import Cluster, ClusterOptions
from volplane.cluster.user_drivers import UserDrivers

pytestmark = pytest.mark.root


def make_cluster(directory: Path, **sidecars: tuple[str, ...]) -> Cluster:
    driver = external_driver.from_command(staging_driver.command_line())
    driver = structs.replace(driver, sidecars=sidecars, shape=DeploymentShape.CENTRAL)
    options = ClusterOptions(data_dir=str(directory), nodes=1, nodes_per_zone=1)
    return Cluster(options, UserDrivers(drivers=(driver,), builtin=False))


@pytest.mark.parametrize("sidecar", ["provisioner", "registrar", "liveness"])
async def test_a_sidecar_that_ends_again_and_again_is_reported(
    sidecar: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "WAIT_TIMEOUT", 8.0)
    async with make_cluster(tmp_path / "c", **{sidecar: ("--no-such-flag",)}) as cluster:
        with pytest.raises(ClusterNotReady, match=r"(?s)container \S+ of pod \S+: .*no-such-flag"):
            await cluster.wait_ready()


async def test_a_driver_whose_containers_run_is_ready(tmp_path: Path) -> None:
    async with make_cluster(tmp_path / "c") as cluster:
        await cluster.wait_ready()
