"""Hooks for all tests: coroutine tests, virtual time, missing peers, and the leak check."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import uvloop
from hypothesis.internal.conjecture import providers

from tests.support import failure_printer, machine, peers, vm_tests
from tests.support.cri import fixtures as cri
from volplane.base.virtual_time_loop import VirtualLoop

# Use the same examples in every run, so that a failure depends on the change only (`VOLPLANE_EXPLORE=1` uses
# other ones). No deadline: the machine may be busy.
hypothesis.settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
if not os.environ.get("VOLPLANE_EXPLORE"):
    hypothesis.settings.load_profile("steady")
    # Hypothesis uses literals of all imported modules in its examples, so they would depend on the order of
    # tests. There is no setting to disable it.
    providers._get_local_constants = lambda: providers._local_constants

# Find peers in the virtual environment (aws), then on the machine, then among those that `make peers` built.
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"], str(peers.BIN)))

# uvloop runs Python between fork and exec. Garbage collection there may free a gRPC channel, which waits for
# a thread that the child does not have: the child would run for ever, and its parent wait for it.
os.register_at_fork(before=gc.disable, after_in_parent=gc.enable)

pytest_collection_modifyitems = vm_tests.pytest_collection_modifyitems

registry, private_registry = cri.registry, cri.private_registry
containerd, own_containerd = cri.containerd, cri.own_containerd
newer_containerd, own_newer_containerd = cri.newer_containerd, cri.own_newer_containerd

# Everything that tests create is below this directory, so that leaks can be attributed to this worker.
TEST_DIRECTORY = ""


def pytest_configure(config: pytest.Config) -> None:
    if runs_tests(config):
        global TEST_DIRECTORY
        TEST_DIRECTORY = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="vpt-")
        config.option.basetemp = f"{TEST_DIRECTORY}/pytest"
    failure_printer.pytest_configure(config)


def runs_tests(config: pytest.Config) -> bool:
    """False in the pytest-xdist process that only distributes the tests to workers."""
    return hasattr(config, "workerinput") or not config.getoption("numprocesses", None)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests: on uvloop, or in virtual time when marked `virtual`."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in wanted}
    virtual = pyfuncitem.get_closest_marker("virtual") is not None
    factory = VirtualLoop if virtual else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root")
    for mark in item.iter_markers("peer"):
        for peer in mark.args:
            peers.require(peer)


def _leaks() -> dict[str, list[str]]:
    """Mounts, loop devices, processes and networks that this run has left."""
    table = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = [line.split()[4] for line in table if TEST_DIRECTORY in line]
    found = {
        "mounts": mounts,
        "loop devices": machine.loop_devices(Path(TEST_DIRECTORY)),
        "processes": list(_processes()),
        "networks": list(machine.interfaces(Path(TEST_DIRECTORY)).values()),
    }
    return {what: sorted(left) for what, left in found.items() if left}


def _processes() -> Iterator[str]:
    me = str(os.getpid())
    for place in Path("/proc").glob("[0-9]*"):
        parent = _read(place / "stat").rpartition(")")[2].split()[1:2]
        command = _read(place / "cmdline").replace("\0", " ").strip()
        if place.name != me and (parent == [me] or TEST_DIRECTORY in command):
            yield f"{place.name} {command}"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:  # the process has just ended
        return ""


@pytest.fixture(scope="session", autouse=True)
def nothing_leaks() -> Iterator[None]:
    """Fail the run if tests leave mounts, loop devices, processes or networks behind."""
    yield
    assert not (left := _leaks()), f"the suite leaves behind: {left}"
    shutil.rmtree(TEST_DIRECTORY, ignore_errors=True)
