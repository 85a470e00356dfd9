"""`python -m tests.soak ebs efs …`: random lives of volumes on our own drivers, one driver after the other.

Options for `volplane test-driver` follow the names; without any, `--soak 10m`. A driver of disks gets a disk
service of its own. All of it runs in its own mount namespace: a namespace that another program makes would
have copies of its mounts, and a disk that is mounted there cannot be detached.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.support import peers, sample_driver
from tests.support.sample_driver.directory_mutants import page_code
from volplane.cloud import CloudInstance
from volplane.testing.soak.run import MAX_COPIES

NODES = 2  # of each copy of a driver
ZONE = "us-east-1a"
UNSHARED = "VOLPLANE_SOAK_UNSHARED"  # environment variable: this process has its own mount namespace
SECRET = ("--secret", "key=open sesame")
VOLPLANE = (sys.executable, "-m", "volplane")


class SoakedDriver(NamedTuple):
    description: str  # for --driver
    variables: Mapping[str, str] = {}
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


def _own(service: str, driver: str, *flags: str, script: Path | None = None) -> str:
    """One of our drivers, as a line of a description; a script may start it."""
    starter = ("/bin/sh", str(script)) if script else ()
    words = (*starter, *VOLPLANE, "driver", service, f"--driver={driver}", "--endpoint=$CSI_ENDPOINT", *flags)
    return f"{service}: {' '.join(words)}\n"


@contextmanager
def efs(place: Path) -> Iterator[SoakedDriver]:
    shared = "--shared-dir=$SHARED_DIR"
    node = _own("node", "efs", shared, "--instance-id=i-$NODE_ID", "--target-root=$STATE_DIR/../..")
    yield SoakedDriver(_own("controller", "efs", shared) + node)


# Runs a command with the address of the disk service of this copy: the directory of a copy has a number.
WITH_ADDRESS = """#!/bin/sh
copy=$(basename "$(dirname "$(dirname "$STATE_DIR")")")
export AWS_ENDPOINT_URL="$(sed -n "${copy}p" "$(dirname "$0")/addresses")"
exec "$@"
"""


@contextmanager
def ebs(place: Path) -> Iterator[SoakedDriver]:
    """Our driver of disks; each copy has its own disk service, so that none sees the volumes of another."""
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    script = place / "with-address.sh"
    script.write_text(WITH_ADDRESS)
    with ExitStack() as stack:
        services = [disk_service(place, copy, keys) for copy in range(MAX_COPIES)]
        addresses = [stack.enter_context(service) for service in services]
        (place / "addresses").write_text("\n".join(addresses))
        own = (f"--root-dir={place}/$NODE_ID", "--target-root=$STATE_DIR/../..")
        node = _own("node", "ebs", "--instance-id=i-$NODE_ID", f"--zone={ZONE}", *own, script=script)
        yield SoakedDriver(_own("controller", "ebs", script=script) + node, keys, options=SECRET)


@contextmanager
def disk_service(place: Path, copy: int, keys: Mapping[str, str]) -> Iterator[str]:
    """A disk service for the nodes of one copy of the driver; its address."""
    own = place / f"cloud-{copy}"
    own.mkdir()
    instances = [
        CloudInstance(f"i-node-{number}", ZONE, str(place / f"node-{number}" / "dev"))
        for number in range(copy * NODES + 1, (copy + 1) * NODES + 1)
    ]
    listed = own / "instances.json"
    listed.write_bytes(msgspec.json.encode(instances))
    command = [*VOLPLANE, "cloud", f"--data-dir={own}", f"--instances-file={listed}"]
    with (
        open(own / "log", "w") as log,
        subprocess.Popen(
            command, env={**os.environ, **keys}, stdout=subprocess.PIPE, stderr=log, text=True
        ) as service,
    ):
        try:
            assert service.stdout is not None
            yield service.stdout.readline().removeprefix("serving on ").strip()
        finally:
            service.terminate()


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
            return subprocess.run(command, env={**os.environ, **driver.variables}, check=False).returncode


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
