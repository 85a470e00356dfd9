"""What every test stands on: coroutine tests, virtual time, peers that may be missing, and the leak check."""

from __future__ import annotations

import asyncio
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

from tests.support import failure_printer, machine, peers, second_look, vm_tests
from volplane.base.virtual_time_loop import VirtualLoop

# The same examples in every run: a change is judged by what it changes. `VOLPLANE_EXPLORE=1` looks further.
# A busy machine makes nothing wrong, so nobody counts its seconds.
hypothesis.settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
if not os.environ.get("VOLPLANE_EXPLORE"):
    hypothesis.settings.load_profile("steady")
    # Hypothesis mixes literals of all modules loaded so far into its examples, so they would depend on which
    # tests ran before. There is no setting for it.
    providers._get_local_constants = lambda: providers._local_constants

# Peers that come with the project's own tools (aws) are found like those of the machine; those that we build
# come last, so that the machine's kubectl stays what `kubectl` means.
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"], str(peers.BIN)))


pytest_addoption = second_look.pytest_addoption
pytest_collection_modifyitems = vm_tests.pytest_collection_modifyitems

# Everything that a test makes lies below one directory, so that what is left of it can be told from what
# others on this machine do at the same time: another run, or another worker of this one.
PLACE = ""


def pytest_configure(config: pytest.Config) -> None:
    if runs_tests(config):
        global PLACE
        PLACE = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="vpt-")
        config.option.basetemp = f"{PLACE}/pytest"
    second_look.pytest_configure(config)
    failure_printer.pytest_configure(config)


def runs_tests(config: pytest.Config) -> bool:
    """Unlike the process that only hands them out to workers."""
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
    """Mounts, bound loop devices, processes and networks of this run that are still there."""
    table = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = [line.split()[4] for line in table if PLACE in line]
    found = {
        "mounts": mounts,
        "loop devices": machine.loop_devices(Path(PLACE)),
        "processes": list(_processes()),
        "networks": machine.interfaces(Path(PLACE)),
    }
    return {what: sorted(left) for what, left in found.items() if left}


def _processes() -> Iterator[str]:
    me = str(os.getpid())
    for place in Path("/proc").glob("[0-9]*"):
        parent = _read(place / "stat").rpartition(")")[2].split()[1:2]
        command = _read(place / "cmdline").replace("\0", " ").strip()
        if place.name != me and (parent == [me] or PLACE in command):
            yield f"{place.name} {command}"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:  # it went while we looked
        return ""


@pytest.fixture(scope="session", autouse=True)
def nothing_leaks() -> Iterator[None]:
    """The suite leaves the machine as it found it."""
    yield
    assert not (left := _leaks()), f"the suite leaves behind: {left}"
    shutil.rmtree(PLACE, ignore_errors=True)
