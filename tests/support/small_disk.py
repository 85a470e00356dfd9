"""A file system of its own on a loop device, and a file in it that takes all of its space."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class SmallDisk:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.filler = path / "filler"

    def fill(self, leave: int = 0) -> None:
        """Use all space except `leave` bytes."""
        with self.filler.open("ab", buffering=0) as file:
            size = file.tell()
            for step in (64 << 20, 1 << 20, 4096, 1024):
                with suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), 0, size + step)
                        size += step
            os.truncate(self.filler, max(0, size - leave))
            os.fsync(file.fileno())

    def empty(self) -> None:
        self.filler.unlink()


@contextmanager
def small_disk(directory: Path, mib: int, *, block_size: int = 4096) -> Iterator[SmallDisk]:
    image, place = directory / "disk.img", directory / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(mib << 20)
    subprocess.run(["mkfs.ext4", "-q", "-b", str(block_size), str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    try:
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
        image.unlink()
