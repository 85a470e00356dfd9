"""Tests that need a capability: `@pytest.mark.capability(CAP_SYS_RESOURCE)`.

If the machine has the capability, they run like any other. If not, the test runs in a VM: its item is
replaced by one that passes if the test has passed in there. One VM runs all such tests of a file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support import peers, vm

ROOT = Path(__file__).resolve().parents[2]
SLOWER = "10"
CAP_SYS_RESOURCE = 24  # needed to expand a mounted ext4


def has_capability(number: int) -> bool:
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff"))
    return bool(int(effective, 16) >> number & 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [InVm.of(item) if _lacks_capability(item) else item for item in items]


def _lacks_capability(item: pytest.Item) -> bool:
    numbers = (mark.args[0] for mark in item.iter_markers("capability"))
    return os.geteuid() == 0 and not all(map(has_capability, numbers))


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

    def setup(self) -> None:
        vm.require("this machine lacks a capability, and ")

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
    env = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    command = vm.VmCommand(
        [sys.executable, "-B", "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *names],
        directory=directory,
        env=env | {"VOLPLANE_PATIENCE": SLOWER},
        shown=[ROOT, Path(sys.prefix), peers.BIN],
    )
    with command:
        try:
            return command.wait().output
        except vm.VmDied as died:
            return str(died)
