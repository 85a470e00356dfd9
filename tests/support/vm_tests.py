"""Tests that need more than this machine gives to root: `@pytest.mark.capability(CAP_SYS_RESOURCE)`.

Where the capability is there they run like any other. Where it is not, the same test runs in a guest kernel:
here its place is taken by an item that passes if the test has passed in there. One guest serves all such
tests of a file, when the first of them has its turn.
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
CAP_SYS_RESOURCE = 24  # the kernel asks for it before it grows a mounted ext4


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


OUTPUT = pytest.StashKey[dict[Path, str]]()  # for each file of tests, what pytest has printed in there


class InVm(pytest.Item):
    test: pytest.Item

    @classmethod
    def of(cls, test: pytest.Item) -> Self:
        item: Self = cls.from_parent(test.parent, name=test.name)
        item.test = test
        item.own_markers.extend(test.own_markers)
        return item

    def setup(self) -> None:
        vm.require("the kernel withholds a capability here, and ")

    def runtest(self) -> None:
        all_told = self.session.stash.setdefault(OUTPUT, {})
        if self.path not in all_told:
            same_file = [i for i in self.session.items if isinstance(i, InVm) and i.path == self.path]
            all_told[self.path] = _run_in_vm([i.nodeid for i in same_file], self.config.rootpath)
        told = all_told[self.path]
        said = {line.split(" - ")[0] for line in told.splitlines()}
        # Skipped in there, it has shown nothing; if it leaves something behind, it is an ERROR, too.
        if f"PASSED {self.nodeid}" not in said or f"ERROR {self.nodeid}" in said:
            raise NotPassed(told)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *more: Any) -> Any:
        if isinstance(excinfo.value, NotPassed):
            return f"in the guest kernel:\n{excinfo.value}"
        return super().repr_failure(excinfo, *more)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        return self.test.reportinfo()


def _run_in_vm(names: list[str], directory: Path) -> str:
    env = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    guest = vm.VmCommand(
        [sys.executable, "-B", "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *names],
        directory=directory,
        env=env | {"VOLPLANE_PATIENCE": SLOWER},
        shown=[ROOT, Path(sys.prefix), peers.BIN],
    )
    with guest:
        try:
            return guest.wait().output
        except vm.VmDied as died:
            return str(died)
