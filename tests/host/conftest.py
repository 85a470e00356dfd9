"""Disks and a Host for tests of `volplane.host`; what a test leaves is cleaned up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from volplane.host import Host, devices, mounts


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host(threads=4)
    yield host
    host._threads.close()
    host._threads.join()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A directory whose mounts are removed afterwards."""
    yield tmp_path
    for entry in mounts.read_table().under(str(tmp_path)):
        mounts.unmount(entry.target, detach=True)


@pytest.fixture
def disk(room: Path) -> Iterator[Callable[[int], str]]:
    """Makes loop devices over sparse files."""
    made: list[tuple[str, str]] = []

    def make(size: int = 64 << 20) -> str:
        file = room / f"disk-{len(made)}.img"
        file.touch()
        os.truncate(file, size)
        made.append((devices.loop_attach(str(file)), str(file)))
        return made[-1][0]

    yield make
    for entry in mounts.read_table().under(str(room)):
        mounts.unmount(entry.target)
    for device, file in made:
        devices.loop_detach(device, file)  # the number may have been reused
