"""`python -m tests.soak ebs efs …`: random lives of volumes on our own drivers, one driver after the other.

Options for `volplane test-driver` follow the names; without any, `--soak 10m`. All of it runs in its own
mount namespace: a namespace that another program makes would have copies of its mounts, and a disk that is
mounted there cannot be detached.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from tests.support import peers, sample_driver
from tests.support.sample_driver.directory_mutants import page_code

UNSHARED = "VOLPLANE_SOAK_UNSHARED"  # environment variable: this process has its own mount namespace
SECRET = ("--secret", "key=open sesame")
VOLPLANE = (sys.executable, "-m", "volplane")


class SoakedDriver(NamedTuple):
    description: str  # for --driver
    options: tuple[str, ...] = ()


@contextmanager
def page(place: Path) -> Iterator[SoakedDriver]:
    """The driver of docs/write-a-driver.md."""
    program = place / "directories.py"
    program.write_text(page_code())
    yield SoakedDriver(f"command: {sys.executable} {program} $SHARED_DIR $CSI_SOCKET $NODE_ID\n")


@contextmanager
def disks(place: Path) -> Iterator[SoakedDriver]:
    """The correct driver of the tests, whose disks are loop devices."""
    yield SoakedDriver(f"command: {sample_driver.command_line()}\n", options=SECRET)


@contextmanager
def go(place: Path) -> Iterator[SoakedDriver]:
    program = peers.path("directories-driver")
    yield SoakedDriver(
        f"command: {program} --endpoint=$CSI_ENDPOINT --nodeid=$NODE_ID --root=$SHARED_DIR\n", options=SECRET
    )


def _own(service: str, driver: str, *flags: str) -> str:
    """One of our drivers, as a line of a description."""
    words = (*VOLPLANE, "driver", service, f"--driver={driver}", "--endpoint=$CSI_ENDPOINT", *flags)
    return f"{service}: {' '.join(words)}\n"


@contextmanager
def efs(place: Path) -> Iterator[SoakedDriver]:
    shared = "--shared-dir=$SHARED_DIR"
    node = _own("node", "efs", shared, "--instance-id=i-$NODE_ID", "--target-root=$STATE_DIR/../..")
    yield SoakedDriver(_own("controller", "efs", shared) + node)


@contextmanager
def ebs(place: Path) -> Iterator[SoakedDriver]:
    """Our driver of disks; each copy has its own disk service, so that none sees the volumes of another."""
    node = _own("node", "ebs", "--target-root=$STATE_DIR/../..")
    yield SoakedDriver(_own("controller", "ebs") + node, options=SECRET)


DRIVERS: dict[str, Callable[[Path], AbstractContextManager[SoakedDriver]]] = {
    "page": page,
    "disks": disks,
    "go": go,
    "efs": efs,
    "ebs": ebs,
}


def soak(name: str, options: Sequence[str]) -> int:
    """Run lives on the driver; returns the exit code of `volplane test-driver`."""
    with tempfile.TemporaryDirectory(prefix="volplane-soak-", dir="/var/tmp") as directory:
        place = Path(directory)
        with DRIVERS[name](place) as driver:
            description = place / f"{name}.yaml"
            description.write_text(driver.description)
            command = [*VOLPLANE, "test-driver", "--driver", str(description), *driver.options, *options]
            return subprocess.run(command, check=False).returncode


def main(words: Sequence[str]) -> int:
    names = list(takewhile(lambda word: not word.startswith("-"), words))
    if unknown := sorted({*names} - DRIVERS.keys()):
        print(f"no such driver: {', '.join(unknown)}; there are {', '.join(DRIVERS)}", file=sys.stderr)
        return 2
    if UNSHARED not in os.environ:
        os.environ[UNSHARED] = "1"
        own = ("unshare", "--mount", "--propagation", "slave")
        os.execvp(own[0], (*own, sys.executable, "-m", "tests.soak", *words))
    options = words[len(names) :] or ("--soak", "10m")
    return max(soak(name, options) for name in names or DRIVERS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
