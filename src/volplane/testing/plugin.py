"""The pytest plugin: fixtures for a cluster that runs your CSI driver.

    def test_a_volume_keeps_its_data(volplane_claim, volplane_pod):
        data = volplane_claim()
        volplane_pod(data).write("line", "hello")
        assert volplane_pod(data).read("line") == "hello"

Choose the driver on the command line, in the configuration, or with your own fixture `volplane_driver`. The
cluster starts with the first test that uses it and is shared by all tests of the process; a test must leave
nothing behind. Nothing else of volplane is imported until a fixture is used.

With `volplane_short_names = true` in the configuration, `claim`, `pod` and `csi_driver` are fixtures, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
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
SHORT_NAMES = "volplane_short_names"
NEW_NAMES = {"claim": "volplane_claim", "pod": "volplane_pod", "csi_driver": "volplane_driver"}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup(GROUP, "CSI driver tests in a cluster")
    for name, (what, about) in _OPTIONS.items():
        group.addoption(f"--{name.replace('_', '-')}", dest=f"volplane_{name}", metavar=what, help=about)
        parser.addini(name, about, default="")
    about = "also provide the fixtures claim, pod and csi_driver (default false)"
    parser.addini(SHORT_NAMES, about, type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    if config.getini(SHORT_NAMES):
        from volplane.testing import short_names

        config.pluginmanager.register(short_names, SHORT_NAMES)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Name the new fixture in the report of a test that uses an old name."""
    report = yield
    error = call.excinfo.value if call.excinfo is not None else None
    if isinstance(error, pytest.FixtureLookupError) and error.argname in NEW_NAMES:
        report.sections.append((GROUP, describe_new_name(error.argname)))
    return report


def describe_new_name(name: str) -> str:
    return (
        f"If {name} is meant to be the fixture of volplane: it is called {NEW_NAMES[name]} now. For the short"
        f" names, set {SHORT_NAMES} = true in pytest's configuration."
    )


def _option(config: pytest.Config, name: str) -> str:
    return str(config.getoption(f"volplane_{name}") or config.getini(name) or "")


@pytest.fixture(scope="session")
def volplane_driver(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> object:
    """The driver under test: a command (str), a file (Path), an ExternalDriver, or None for the built-in EBS
    driver.

    Override this fixture to choose the driver in Python.
    """
    chosen = choose_driver(pytestconfig)
    if chosen is None:
        _refuse_old_override(request)
    return chosen


def choose_driver(config: pytest.Config) -> str | Path | None:
    """The driver of the options; None for the built-in EBS driver."""
    line, file = _option(config, "csi_driver_command"), _option(config, "csi_driver")
    if line and file:
        raise pytest.UsageError("use either csi-driver or csi-driver-command, not both")
    return line or ((config.rootpath / file) if file else None)


def _refuse_old_override(request: pytest.FixtureRequest) -> None:
    """Fail instead of testing the built-in driver, if the tests choose theirs by the old name."""
    try:
        request.getfixturevalue("csi_driver")
    except pytest.FixtureLookupError:
        return
    pytest.fail(f"the fixture csi_driver has no effect. {describe_new_name('csi_driver')}", pytrace=False)


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
    pytestconfig: pytest.Config, volplane_driver: object, volplane_settings: Mapping[str, Any]
) -> Iterator[ClusterPool]:
    if os.geteuid() != 0:
        pytest.skip("the cluster needs root to mount volumes: sudo pytest, or volplane unshare pytest")
    from volplane.testing.sync_cluster import SyncCluster

    nodes = _nodes(_option(pytestconfig, "csi_nodes"))
    directory = Path(pytestconfig.rootpath)
    pool = ClusterPool(
        lambda: SyncCluster.start(volplane_driver, {"nodes": nodes, **volplane_settings}, directory)
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
def volplane_claim(volplane_cluster: SyncCluster) -> Callable[..., ClaimHandle]:
    """Create claims: `volplane_claim(size="1Gi", mode="ReadWriteOnce", block=False, storage_class="",
    source=None)`.
    """
    return volplane_cluster.claim


@pytest.fixture
def volplane_pod(volplane_cluster: SyncCluster) -> Callable[..., RunningPod]:
    """`volplane_pod(claim, node="", readonly=False, wait=True)` creates a pod with the claim's volume at
    /data, or as /dev/data, and waits until it runs.
    """
    return volplane_cluster.pod
