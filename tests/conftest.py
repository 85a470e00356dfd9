"""What every test stands on: coroutine tests, virtual time, peers that may be missing, and the leak check."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from volplane.base.virtual import VirtualLoop

# Peers that come with the project's own tools (aws) are found like those of the machine.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


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
            if shutil.which(peer) is None:
                reason = f"peer {peer} is not installed"
                if os.environ.get("CI"):
                    pytest.fail(f"{reason}, and CI is meant to have it")
                pytest.skip(reason)


def _machine() -> dict[str, set[str]]:
    """Mounts, bound loop devices and our children, as the machine shows them now."""
    mounts = {
        line.split(" - ")[0].split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()
    }
    loops = {str(p.parent.parent.name) for p in Path("/sys/block").glob("loop*/loop/backing_file")}
    children: set[str] = set()
    me = str(os.getpid())
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = stat.parent.name, stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if rest[1] == me:
            children.add(pid)
    return {"mounts": mounts, "loop devices": loops, "child processes": children}


@pytest.fixture(scope="session", autouse=True)
def nothing_leaks() -> Iterator[None]:
    """The suite leaves the machine as it found it."""
    before = _machine()
    yield
    after = _machine()
    leaks = {what: sorted(after[what] - before[what]) for what in after if after[what] - before[what]}
    assert not leaks, f"the suite leaves behind: {leaks}"
