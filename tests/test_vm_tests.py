"""Tests that need a capability which this machine lacks run in a VM, which changes nothing here."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support import machine, vm
from tests.support.up import wait_until

pytestmark = [pytest.mark.root, pytest.mark.peer(vm.PROGRAM)]

ROOT = Path(__file__).resolve().parents[1]
CONFTEST = """
import sys
sys.path.insert(0, {root!r})
from tests.support.vm_tests import pytest_collection_modifyitems
"""
SKIPPED_IN_THERE = """
import pytest
from tests.support.vm_tests import CAP_SYS_RESOURCE, has_capability

@pytest.mark.capability(CAP_SYS_RESOURCE)
def test_it():
    pytest.skip(f"capable: {has_capability(CAP_SYS_RESOURCE)}")
"""
LONG = """
import pytest
from tests.support.vm_tests import CAP_SYS_RESOURCE

@pytest.mark.capability(CAP_SYS_RESOURCE, long=True)
def test_it():
    pass
"""
BROKEN_OFF = """
import os, signal, tempfile, threading
from pathlib import Path
import pytest
from tests.support import machine
from tests.support.up import wait_until
from tests.support.vm_tests import CAP_SYS_RESOURCE

def vm_runs():
    return [p for p in Path(tempfile.gettempdir()).glob("vm-*") if machine.processes(p)]

def break_off():
    wait_until("the VM runs", vm_runs)
    os.kill(os.getpid(), signal.SIGINT)

def test_before():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who started this run may ignore it
    threading.Thread(target=break_off).start()

@pytest.mark.capability(CAP_SYS_RESOURCE)
def test_it():
    pass
"""
ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture(autouse=True)
def _runnable_kernel() -> None:
    vm.require()


def test_the_vm_has_the_machines_files_and_cannot_write_them(tmp_path: Path) -> None:
    there = f"test -e {__file__} && ! test -e {tempfile.gettempdir()}/other"
    closed = f"! touch {tmp_path}/made && ! touch {sys.prefix}/made"
    own = "touch /tmp/made && grep -q 000001ffffffffff /proc/self/status"
    (Path(tempfile.gettempdir()) / "other").touch()
    done = vm.run(
        ["sh", "-c", f"{there} && {closed} && {own} && echo $0 && exit 3", "it's there"],
        directory=tmp_path,
        env=ENV,
        shown=[ROOT, Path(sys.prefix)],
    )
    assert (done.code, done.output.splitlines()[-1]) == (3, "it's there"), done.output
    assert not Path("/tmp/made").exists()


def test_a_vm_that_does_not_end_is_ended(tmp_path: Path) -> None:
    with vm.VmCommand(["sleep", "1000"], directory=tmp_path, env=ENV, seconds=1) as running:
        with pytest.raises(vm.VmDied, match="not done after 1s"):
            running.wait()
        assert machine.processes(running.exchange)
    wait_until("all its processes are gone", lambda: not machine.processes(running.exchange))
    assert not running.exchange.exists()


def test_a_test_that_the_vm_skips_has_not_passed(tmp_path: Path) -> None:
    done = run_without_the_capability(SKIPPED_IN_THERE, tmp_path)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "in the VM:" in done.stdout
    assert "capable: True" in done.stdout


def test_a_long_test_runs_in_the_vm_on_request_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VOLPLANE_TEST_VM", raising=False)
    done = run_without_the_capability(LONG, tmp_path)
    assert "this machine lacks what it needs; with VOLPLANE_TEST_VM=all it runs" in done.stdout
    assert done.returncode == pytest.ExitCode.OK, done.stdout


def test_a_run_that_is_broken_off_ends_its_vm(tmp_path: Path) -> None:
    done = run_without_the_capability(BROKEN_OFF, tmp_path)
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout
    wait_until("all its processes are gone", lambda: not machine.processes(tmp_path))
    assert not list(tmp_path.glob("vm-*"))


def run_without_the_capability(tests: str, place: Path) -> subprocess.CompletedProcess[str]:
    (place / "conftest.py").write_text(CONFTEST.format(root=str(ROOT)))
    (place / "test_it.py").write_text(tests)
    (place / "pytest.ini").write_text("[pytest]\nmarkers = capability\naddopts = -rs\n")
    command = ["setpriv", "--bounding-set", "-sys_resource", sys.executable, "-m", "pytest", "-q"]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=place,
        env=os.environ | {"TMPDIR": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
