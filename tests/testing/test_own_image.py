"""A driver in its own image, started by a container runtime: its manifests, its faults, and what stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import peers
from tests.support.cri import image
from tests.support.cri.containerd import Containerd
from tests.support.cri.registry import Registry
from tests.support.driver_cases import SEED
from volplane.cluster import external_driver
from volplane.cluster.errors import CannotStart
from volplane.cluster.external_driver import Command, ExternalDriver
from volplane.cluster.user_drivers import read_manifests
from volplane.testing import driver_run, runner
from volplane.testing.cases import ALL_CASES
from volplane.testing.driver_process import DriverStartError
from volplane.testing.report import DriverTestRun
from volplane.testing.runner import CaseSettings

pytestmark = [pytest.mark.root, pytest.mark.peer("hostpathplugin"), pytest.mark.slow]

IMAGE = "k8s.gcr.io/sig-storage/hostpathplugin"
# A restart, data, kills, leaks of a process, and a cluster whose driver and node are killed.
PASSES = (
    "identity/node after restart",
    "publish/data",
    "block/data",
    "killed during/CreateVolume",
    "killed after/NodeUnstageVolume",
    "leaks/descriptors and threads",
    "leaks/processes",
    "cluster/driver killed during CreateVolume",
    "cluster/node killed at NodeStageVolume",
)


def read_driver() -> ExternalDriver:
    (plugin,) = peers.manifests("hostpathplugin", "kubernetes-1.20/hostpath/csi-hostpath-plugin.yaml")
    return external_driver.from_manifests(read_manifests(plugin.parent), {IMAGE: Command(())})


@pytest.fixture(scope="module", autouse=True)
def pushed(registry: Registry) -> None:
    # Its own image has util-linux for losetup, too.
    made = image.from_peer(peers.path("hostpathplugin"), "losetup", "findmnt", "fallocate")
    registry.push(made, "sig-storage/hostpathplugin:v1.7.1")


async def run(driver: ExternalDriver, runtime: str, *names: str) -> DriverTestRun:
    cases = [case for case in runner.select_cases(ALL_CASES, "", "") if case.name in names]
    assert len(cases) == len(names)
    settings = CaseSettings(seed=SEED, timeout=120.0)
    return await driver_run.run_driver_tests(driver, cases, settings, lambda result: None, runtime=runtime)


async def test_a_driver_is_tested_in_its_own_image(containerd: Containerd) -> None:
    before = containerd.list_containers()
    done = await run(read_driver(), containerd.endpoint, *PASSES)
    assert {result.name: result.reason for result in done.failed_results} == {}
    assert {result.name for result in done.results if result.verdict.name == "PASSED"} == set(PASSES)
    assert (done.driver, done.version) == ("hostpath.csi.k8s.io", "v1.7.2")
    assert containerd.list_containers() == before


async def test_a_failure_of_the_driver_in_its_image_is_found(containerd: Containerd) -> None:
    """It does not save what it has published; its log is that of the container."""
    done = await run(read_driver(), containerd.endpoint, "killed after/NodePublishVolume")
    (failed,) = done.failed_results
    assert "must be staged before publishing" in failed.reason
    assert any("GRPC call" in text for text in failed.logs.values())


async def test_what_cannot_start_is_told(containerd: Containerd, tmp_path: Path) -> None:
    driver = read_driver()
    with pytest.raises(CannotStart, match=f"container runtime at unix://{tmp_path}/nothing.sock"):
        await run(driver, f"unix://{tmp_path}/nothing.sock", "identity/name")
    (plugin,) = peers.manifests("hostpathplugin", "kubernetes-1.20/hostpath/csi-hostpath-plugin.yaml")
    text = plugin.read_text()
    for old, new, why in (
        ("hostpathplugin:v1.7.1", "hostpathplugin:missing", "not found"),
        ("--drivername=hostpath.csi.k8s.io", "--no-such-flag", "not defined: -no-such-flag"),
    ):
        (tmp_path / "plugin.yaml").write_text(text.replace(old, new))
        changed = external_driver.from_manifests(
            read_manifests(tmp_path / "plugin.yaml"), {IMAGE: Command(())}
        )
        with pytest.raises(DriverStartError, match=why):
            await run(changed, containerd.endpoint, "identity/name")
    assert "volplane-test-driver" not in containerd.crictl("pods", "-o", "json")
