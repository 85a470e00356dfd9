"""Tests that run in a VM, because the machine lacks what they need.

`@pytest.mark.capability(CAP_SYS_RESOURCE)`: if the machine has the capability, the test runs like any other.
If not, it runs in a VM: its item is replaced by one that passes if the test has passed in there. One VM runs
all such tests of a file. With `capability(…, long=True)` it does so only with VOLPLANE_TEST_VM=all, and is
skipped otherwise: the VM is slow. `@pytest.mark.vm`: the test always runs there, or with `vm(long=True)` on
request.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support import peers, vm

ROOT = Path(__file__).resolve().parents[2]
SLOWER = "20"
INSIDE = "VOLPLANE_TEST_IN_VM"
WHICH = "VOLPLANE_TEST_VM"
DROPPED = ("TMPDIR", "PYTHONDONTWRITEBYTECODE")  # from the environment
CAP_SYS_RESOURCE = 24  # needed to expand a mounted ext4


def has_capability(number: int) -> bool:
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff"))
    return bool(int(effective, 16) >> number & 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [InVm.of(item) if _needs_vm(item) else item for item in items]


def _needs_vm(item: pytest.Item) -> bool:
    if INSIDE in os.environ or os.geteuid() != 0:
        return False
    if item.get_closest_marker("vm"):
        return True
    numbers = (mark.args[0] for mark in item.iter_markers("capability"))
    return not all(map(has_capability, numbers))


class NotPassed(Exception):
    pass


OUTPUT = pytest.StashKey[dict[Path, str]]()  # the output of pytest in the VM, by test file


class InVm(pytest.Item):
    test: pytest.Item

    @classmethod
    def of(cls, test: pytest.Item) -> Self:
        assert test.parent is not None
        item: Self = cls.from_parent(test.parent, name=test.name)
        item.test = test
        item.own_markers.extend(test.own_markers)
        return item

    @property
    def is_long(self) -> bool:
        marks = (*self.test.iter_markers("capability"), *self.test.iter_markers("vm"))
        return any(mark.kwargs.get("long") for mark in marks)

    def setup(self) -> None:
        if self.is_long and os.environ.get(WHICH) != "all":
            pytest.skip(f"this machine lacks what it needs; with {WHICH}=all it runs in a virtual machine")
        vm.require("this machine lacks what the test needs, and ")

    def runtest(self) -> None:
        outputs = self.session.stash.setdefault(OUTPUT, {})
        if self.path not in outputs:
            same_file = [i for i in self.session.items if isinstance(i, InVm) and i.path == self.path]
            outputs[self.path] = _run_in_vm([i.nodeid for i in same_file], self.config.rootpath)
        output = outputs[self.path]
        results = {line.split(" - ")[0] for line in output.splitlines()}
        # A skipped test has not passed; a leak is an ERROR.
        if f"PASSED {self.nodeid}" not in results or f"ERROR {self.nodeid}" in results:
            raise NotPassed(output)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *more: Any) -> Any:
        if isinstance(excinfo.value, NotPassed):
            return f"in the VM:\n{excinfo.value}"
        return super().repr_failure(excinfo, *more)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        return self.test.reportinfo()


def _run_in_vm(names: list[str], directory: Path) -> str:
    env = {name: value for name, value in os.environ.items() if name not in DROPPED}
    with tempfile.TemporaryDirectory(prefix="pycache-") as bytecode:
        env |= {"PYTHONPYCACHEPREFIX": bytecode}
        pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        # Compile what the tests import, which takes the VM half a minute.
        compiling = [*pytest_command, "--collect-only", *names]
        subprocess.run(compiling, cwd=directory, env=env, capture_output=True, check=False)
        command = vm.VmCommand(
            [*pytest_command, "-rA", *names],
            directory=directory,
            env=env | {"VOLPLANE_PATIENCE": SLOWER, "PYTHONDONTWRITEBYTECODE": "1", INSIDE: "1"},
            shown=[ROOT, Path(sys.prefix), peers.BIN, Path(bytecode)],
        )
        with command:
            try:
                return command.wait().output
            except vm.VmDied as died:
                return str(died)
