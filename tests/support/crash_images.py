"""A file system that can be copied at any moment, as the disk would be after a power cut.

The file system is in an image with direct I/O: data in its caches is not in the image. The image is on XFS,
where one call copies a file with shared blocks, atomically with respect to writes. So each copy is the disk
at one moment.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

from tests.support.up import wait_until
from volplane.host import devices

_FICLONE = 0x40049409
_MKFS = {
    "ext4": ["mkfs.ext4", "-q", "-F"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-s", "size=4096"],  # a loop device may have such sectors
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
}
SIZE = 4 << 30  # size of the sparse image in bytes
BELOW = 24 << 30  # bytes of the file system that holds all copies


class Mounted:
    """An image and its mount point."""

    def __init__(self, image: Path, place: Path, *, options: str = "", direct: bool = True) -> None:
        self.image, self.place, self._options = image, place, options
        self._direct = direct
        self.device = ""

    def mount(self) -> Self:
        self.place.mkdir(exist_ok=True)
        self.device = devices.loop_attach(str(self.image), direct=self._direct)
        chosen = ["-o", self._options] if self._options else []
        try:
            _run("mount", *chosen, self.device, str(self.place))
        except AssertionError:
            wait_until(f"{self.device} is free", self._is_free)
            raise
        return self

    def unmount(self) -> None:
        if self.device:
            _run("umount", str(self.place))
            # A process that creates a mount namespace at this moment has a copy of the mount for a while.
            wait_until(f"{self.device} is free", self._is_free)
            self.device = ""

    def _is_free(self) -> bool:
        try:
            devices.loop_detach(self.device, str(self.image))
        except devices.DeviceBusy:
            return False
        return True


class Images:
    """`place` is where the file system is mounted, the original or one of its copies."""

    def __init__(self, directory: Path, filesystem: str = "ext4") -> None:
        self.place = directory / "disk"
        self._below = Mounted(directory / "below.img", directory / "below", direct=False)
        self._kind = filesystem
        self._mounted: Mounted | None = None
        self._made = 0

    def __enter__(self) -> Self:
        _sparse(self._below.image, BELOW)
        _run("mkfs.xfs", "-q", "-f", "-m", "reflink=1", str(self._below.image))
        self._below.mount()
        try:
            image = self._below.place / "original.img"
            _sparse(image, SIZE)
            _run(*_MKFS[self._kind], str(image))
            self.mount(image)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()
        self._below.unmount()
        shutil.rmtree(self._below.place, ignore_errors=True)
        self._below.image.unlink(missing_ok=True)

    @property
    def original(self) -> Path:
        return self._below.place / "original.img"

    def mount(self, image: Path) -> None:
        """Mount it as the next boot does: the file system replays its log."""
        options = "nouuid" if self._kind == "xfs" else ""
        self._mounted = Mounted(image, self.place, options=options).mount()

    def unmount(self) -> None:
        if self._mounted is not None:
            self._mounted.unmount()
            self._mounted = None

    def clone(self) -> Path:
        """Copy the disk as it is now."""
        self._made += 1
        target = self._below.place / f"copy-{self._made}.img"
        source = os.open(self.original, os.O_RDONLY)
        try:
            copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                fcntl.ioctl(copy, _FICLONE, source)
            finally:
                os.close(copy)
        finally:
            os.close(source)
        return target


def _sparse(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
