"""The pytest plugin: fixtures for a cluster that runs your CSI driver.

    def test_a_volume_keeps_its_data(claim, pod):
        data = claim()
        pod(data).write("line", "hello")
        assert pod(data).read("line") == "hello"

Choose the driver on the command line, in the configuration, or with your own fixture `csi_driver`. The
cluster starts with the first test that uses it and is shared by all tests of the process; a test must leave
nothing behind. Nothing else of volplane is imported until a fixture is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from volplane.testing.object_handles import ClaimHandle, RunningPod
    from volplane.testing.sync_cluster import SyncCluster

GROUP = "volplane"
_OPTIONS = {
    "csi_driver": ("FILE", "the driver under test: a file that describes it"),
    "csi_driver_command": ("COMMAND", "the driver under test: the command that starts it"),
    "csi_nodes": ("N", "number of nodes of the cluster (default 2)"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup(GROUP, "CSI driver tests in a cluster")
    for name, (what, about) in _OPTIONS.items():
        group.addoption(f"--{name.replace('_', '-')}", dest=f"volplane_{name}", metavar=what, help=about)
        parser.addini(name, about, default="")


def _option(config: pytest.Config, name: str) -> str:
    return str(config.getoption(f"volplane_{name}") or config.getini(name) or "")


@pytest.fixture(scope="session")
def csi_driver(pytestconfig: pytest.Config) -> object:
    """The driver under test: a command (str), a file (Path), an ExternalDriver, or None for the built-in EBS
    driver.

    Override this fixture to choose the driver in Python.
    """
    line, file = _option(pytestconfig, "csi_driver_command"), _option(pytestconfig, "csi_driver")
    if line and file:
        raise pytest.UsageError("use either csi-driver or csi-driver-command, not both")
    return line or ((pytestconfig.rootpath / file) if file else None)


@pytest.fixture(scope="session")
def volplane_settings() -> Mapping[str, Any]:
    """Options of `volplane up`, such as `{"node_monitor_grace_period": 15.0}`. Override it to change them."""
    return {"max_container_restart_period": 1.0}  # tests kill drivers often


class ClusterPool:
    """The cluster of this process: started on first use, and again after a test with leftovers."""

    def __init__(self, start: Callable[[], SyncCluster]) -> None:
        self._start = start
        self._handle: SyncCluster | None = None
        self._failure = ""

    def get(self) -> SyncCluster:
        """The cluster. Fails the test if it does not start; the start is tried only once."""
        from volplane.cluster.errors import CannotStart

        if self._handle is None and not self._failure:
            try:
                self._handle = self._start()
            except CannotStart as error:
                self._failure = f"the cluster did not start: {error}"
        if self._handle is None:
            pytest.fail(self._failure, pytrace=False)
        return self._handle

    def discard(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.stop()


@pytest.fixture(scope="session")
def volplane_pool(
    pytestconfig: pytest.Config, csi_driver: object, volplane_settings: Mapping[str, Any]
) -> Iterator[ClusterPool]:
    if os.geteuid() != 0:
        pytest.skip("the cluster needs root to mount volumes")
    from volplane.testing.sync_cluster import SyncCluster

    nodes = _nodes(_option(pytestconfig, "csi_nodes"))
    directory = Path(pytestconfig.rootpath)
    pool = ClusterPool(
        lambda: SyncCluster.start(csi_driver, {"nodes": nodes, **volplane_settings}, directory)
    )
    yield pool
    pool.discard()


def _nodes(text: str) -> int:
    if text and not (text.isdecimal() and int(text)):
        raise pytest.UsageError(f"csi-nodes must be a positive number, not {text!r}")
    return int(text or 2)


@pytest.fixture
def volplane_cluster(volplane_pool: ClusterPool) -> Iterator[SyncCluster]:
    """A cluster that runs the driver. Objects of a test are deleted after it, and nothing may be left."""
    handle = volplane_pool.get()
    handle.begin_test()
    yield handle
    try:
        left = handle.clean()
    except BaseException:
        volplane_pool.discard()
        raise
    if left:
        volplane_pool.discard()
        pytest.fail("the test left behind:\n" + "\n".join(f"  {one}" for one in left), pytrace=False)


@pytest.fixture
def claim(volplane_cluster: SyncCluster) -> Callable[..., ClaimHandle]:
    """`claim(size="1Gi", mode="ReadWriteOnce", block=False, source=None)` creates a claim."""
    return volplane_cluster.claim


@pytest.fixture
def pod(volplane_cluster: SyncCluster) -> Callable[..., RunningPod]:
    """`pod(claim, node="")` creates a pod with the claim's volume at /data, and waits until it runs."""
    return volplane_cluster.pod
