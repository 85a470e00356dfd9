"""The pytest plugin: a cluster around your driver, and fixtures to use and to break it.

    def test_a_volume_keeps_its_data(claim, pod):
        data = claim()
        pod(data).write("line", "hello")
        assert pod(data).read("line") == "hello"

Which driver is said on the command line, in the configuration, or by a fixture `csi_driver` of your own. The
cluster starts with the first test that wants it and serves all tests of this process; after each of them it
must be as before. Nothing of volplane is imported until a fixture is used.
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
    "csi_nodes": ("N", "how many nodes the cluster has (2)"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup(GROUP, "a cluster around a CSI driver")
    for name, (what, about) in _OPTIONS.items():
        group.addoption(f"--{name.replace('_', '-')}", dest=f"volplane_{name}", metavar=what, help=about)
        parser.addini(name, about, default="")


def _option(config: pytest.Config, name: str) -> str:
    return str(config.getoption(f"volplane_{name}") or config.getini(name) or "")


@pytest.fixture(scope="session")
def csi_driver(pytestconfig: pytest.Config) -> object:
    """The driver under test: a command (str), a file (Path), a Guest, or None for the built-in EBS driver.

    Make a fixture of the same name to say it in Python.
    """
    line, file = _option(pytestconfig, "csi_driver_command"), _option(pytestconfig, "csi_driver")
    if line and file:
        raise pytest.UsageError("csi-driver and csi-driver-command: the driver under test is one of them")
    return line or ((pytestconfig.rootpath / file) if file else None)


@pytest.fixture(scope="session")
def volplane_settings() -> Mapping[str, Any]:
    """Settings of the cluster, such as `{"node_monitor_grace_period": 15.0}`; make your own to change any."""
    return {"max_container_restart_period": 1.0}  # drivers are killed often here


class ClusterPool:
    """The cluster of this process: started when it is wanted, and anew after a test that left a disorder."""

    def __init__(self, start: Callable[[], SyncCluster]) -> None:
        self._start = start
        self._handle: SyncCluster | None = None
        self._failure = ""

    def get(self) -> SyncCluster:
        """Fails the test if it does not start; it is tried once, not for every test again."""
        from volplane.cluster.errors import CannotStart

        if self._handle is None and not self._failure:
            try:
                self._handle = self._start()
            except CannotStart as error:
                self._failure = f"the cluster does not start: {error}"
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
        pytest.skip("a cluster needs root: volumes are mounted for real")
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
        raise pytest.UsageError(f"csi-nodes is how many nodes there are, not {text!r}")
    return int(text or 2)


@pytest.fixture
def volplane_cluster(volplane_pool: ClusterPool) -> Iterator[SyncCluster]:
    """A cluster with the driver in it. What a test makes is removed after it, and nothing may be left."""
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
        pytest.fail("the test leaves behind:\n" + "\n".join(f"  {one}" for one in left), pytrace=False)


@pytest.fixture
def claim(volplane_cluster: SyncCluster) -> Callable[..., ClaimHandle]:
    """`claim(size="1Gi", mode="ReadWriteOnce", block=False, source=None)` makes a claim."""
    return volplane_cluster.claim


@pytest.fixture
def pod(volplane_cluster: SyncCluster) -> Callable[..., RunningPod]:
    """`pod(claim, node="")` is a pod that runs, with the claim's volume at /data."""
    return volplane_cluster.pod
