"""Loop devices and block devices.

The kernel accepts a request to unbind a loop device that is still open, and unbinds it some time later. A
caller that detaches a disk must know whether it is unbound. So `loop_detach` checks, and withdraws the
request if the device is in use.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from volplane.base import failpoint
from volplane.base.user_namespace import is_user_namespace
from volplane.host import mounts

_LOOP_CLR_FD, _LOOP_SET_STATUS64, _LOOP_GET_STATUS64 = 0x4C01, 0x4C04, 0x4C05
_LOOP_SET_CAPACITY, _LOOP_CONFIGURE, _LOOP_CTL_GET_FREE = 0x4C07, 0x4C0A, 0x4C82
_READ_ONLY, _AUTOCLEAR, _DIRECT_IO = 1, 4, 16
_LOOP_MAJOR = 7
_PAGE = 4096

# loop_info64: device, inode, rdevice, offset, sizelimit; number, encryption (2), flags; names, key, init
_INFO = struct.Struct("=5Q4I64s64s32s2Q")
_FLAGS = 8
_CONFIG = struct.Struct(f"=2I{_INFO.size}s8Q")

DELETED = " (deleted)"  # the kernel appends it to the name of a deleted file

# Seconds for which others may hold a device open without using it: udev and lsblk look at it, and a program
# that binds a file may try a number that has just been taken.
BUSY_TIMEOUT = 0.25

_attach_lock = threading.Lock()  # so that this process never binds one file to two devices


class DeviceBusy(OSError):
    """The device is in use, perhaps in another mount namespace."""

    def __init__(self, device: str) -> None:
        super().__init__(errno.EBUSY, "device is still in use", device)


@failpoint.effect("host:loop_attach")
def loop_attach(file: str, *, readonly: bool = False, direct: bool = False) -> str:
    """Bind `file` to a loop device; a file that is bound already keeps its device."""
    file = os.path.realpath(file)
    there = os.stat(file)
    with _attach_lock:
        for device, backing in loops().items():
            # The name may belong to another file, in another mount namespace.
            if backing == file and _backing_inode(device) == (there.st_dev, there.st_ino):
                return device
        return _bind_free_loop(file, readonly, direct)


def _bind_free_loop(file: str, readonly: bool, direct: bool) -> str:
    mode = os.O_RDONLY if readonly else os.O_RDWR
    # Never AUTOCLEAR: a crash must not unbind the file.
    flags = (_READ_ONLY if readonly else 0) | (_DIRECT_IO if direct else 0)
    with _open_descriptor(file, mode) as backing, _open_control() as control:
        info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, flags, os.fsencode(file)[:63], b"", b"", 0, 0)
        request = _CONFIG.pack(backing, 0, info, *[0] * 8)
        while True:
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            device = _device_node(number)
            with _open_descriptor(device, mode) as loop:
                try:
                    fcntl.ioctl(loop, _LOOP_CONFIGURE, request)
                except OSError as error:
                    if error.errno != errno.EBUSY:  # taken by another process in between: ask again
                        raise OSError(error.errno, error.strerror, device, None, file) from error
                else:
                    return device


@contextmanager
def _open_control() -> Iterator[int]:
    try:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    except PermissionError as error:
        if not is_user_namespace():
            raise
        text = "without root there are no loop devices; use a volume that is a directory, or run it with sudo"
        raise PermissionError(error.errno, text, "/dev/loop-control") from error
    try:
        yield control
    finally:
        os.close(control)


def _device_node(number: int) -> str:
    path = f"/dev/loop{number}"
    if not os.path.exists(path):  # /dev is not always a devtmpfs
        with suppress(FileExistsError):
            os.mknod(path, stat.S_IFBLK | 0o660, os.makedev(_LOOP_MAJOR, number))
    return path


@failpoint.effect("host:loop_detach")
def loop_detach(device: str, file: str = "") -> bool:
    """Unbind; False if nothing was bound. Raises DeviceBusy, without any change, while it is in use anywhere.

    With `file`, only if it is that file's device: the kernel reuses numbers, also for other programs.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            return _unbind(device, file)
        except DeviceBusy:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)  # in a worker thread; the kernel sends no event when it lets go of a device


def _unbind(device: str, file: str) -> bool:
    try:
        # A mounted file system, in any namespace, holds its device exclusively.
        with _open_descriptor(device, os.O_RDWR | os.O_EXCL) as loop:
            # The device is open: from here on it cannot be bound to another file.
            if file and not _is_backed_by(device, file):
                return False
            try:
                fcntl.ioctl(loop, _LOOP_CLR_FD)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return False
                raise
            _refuse_if_others_hold(loop, device)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno == errno.EBUSY:
            if file and not _is_backed_by(device, file):
                return False  # the number belongs to another file now
            raise DeviceBusy(device) from None
        raise
    return True


def _is_backed_by(device: str, file: str) -> bool:
    if backing_file(device).removesuffix(DELETED) == os.path.realpath(file):
        return True
    try:
        there = os.stat(file)
    except OSError:
        return False
    return _backing_inode(device) == (there.st_dev, there.st_ino)


def _backing_inode(device: str) -> tuple[int, int] | None:
    """Device and inode of the backing file: unlike its name, they are the same in all mount namespaces."""
    buffer = bytearray(_INFO.size)
    try:
        with _open_descriptor(device, os.O_RDONLY) as loop:
            fcntl.ioctl(loop, _LOOP_GET_STATUS64, buffer)
    except OSError:  # not bound any more
        return None
    return _INFO.unpack(buffer)[:2]


def _refuse_if_others_hold(loop: int, device: str) -> None:
    buffer = bytearray(_INFO.size)
    try:
        fcntl.ioctl(loop, _LOOP_GET_STATUS64, buffer)
    except OSError as error:
        # being unbound: we have the last descriptor, closing it completes that
        if error.errno == errno.ENXIO:
            return
        raise
    info = list(_INFO.unpack(buffer))
    info[_FLAGS] &= ~_AUTOCLEAR
    fcntl.ioctl(loop, _LOOP_SET_STATUS64, _INFO.pack(*info))
    raise DeviceBusy(device)


@failpoint.effect("host:loop_resize")
def loop_resize(device: str) -> None:
    """Set the device's size to the size of the backing file."""
    with _open_descriptor(device, os.O_RDONLY) as loop:
        fcntl.ioctl(loop, _LOOP_SET_CAPACITY)


def loops() -> dict[str, str]:
    """Bound loop devices and their files. The name of a deleted file ends in the kernel's ` (deleted)`."""
    bound = {}
    for name in os.listdir("/sys/block"):
        if name.startswith("loop") and (file := _read_backing_file(name)):
            bound[f"/dev/{name}"] = file
    return bound


def loops_below(directory: str) -> dict[str, str]:
    """Bound loop devices whose files are below the directory, with the files' names in this namespace.

    For a device that was bound in another mount namespace, the kernel gives the file's path there, or the
    rest of it if the namespace is gone. The last part of the path is the same, and the inode decides. A
    deleted file is found only if the kernel's path for it is below the directory.
    """
    directory = os.path.realpath(directory)
    bound = {device: file.removesuffix(DELETED) for device, file in loops().items()}
    found = {device: file for device, file in bound.items() if file.startswith(f"{directory}/")}
    # Open only devices that may be ours: while one is open, it cannot be detached.
    others = {device: os.path.basename(file) for device, file in bound.items() if device not in found}
    if not others:
        return found
    files = _list_inodes(directory, set(others.values()))
    names = {os.path.basename(file) for file in files.values()}
    for device in (device for device, name in others.items() if name in names):
        if file := files.get(_backing_inode(device)):
            found[device] = file
    return found


def _list_inodes(directory: str, names: set[str]) -> dict[tuple[int, int] | None, str]:
    """Device and inode of files with these names below the directory; foreign mounts are skipped."""
    found: dict[tuple[int, int] | None, str] = {}
    foreign = _find_foreign_mounts(directory)
    for place, inner, files in os.walk(directory):
        inner[:] = [name for name in inner if f"{place}/{name}" not in foreign]
        for path in (f"{place}/{name}" for name in names.intersection(files)):
            with suppress(OSError):  # removed meanwhile
                if path not in foreign and stat.S_ISREG((there := os.lstat(path)).st_mode):
                    found[there.st_dev, there.st_ino] = path
    return found


def _find_foreign_mounts(directory: str) -> set[str]:
    table = mounts.read_table()
    known = {entry.id: entry for entry in table}
    return {e.target for e in table.under(directory) if not mounts.is_self_bind(e, known.get(e.parent))}


def backing_file(device: str) -> str:
    """The file behind a loop device; "" for other devices and if nothing is bound."""
    return _read_backing_file(os.path.basename(os.path.realpath(device)))


def _read_backing_file(name: str) -> str:
    try:
        descriptor = os.open(f"/sys/block/{name}/loop/backing_file", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.fsdecode(os.read(descriptor, _PAGE)).removesuffix("\n")  # at most a page, in one read
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def serial(device: str) -> str:
    """The serial of an NVMe disk, the file name of a loop device without its suffix, else ""."""
    name = os.path.basename(os.path.realpath(device))
    if file := _read_backing_file(name):
        return os.path.basename(file.removesuffix(DELETED)).removesuffix(".img")
    with suppress(OSError), open(f"/sys/block/{name}/device/serial") as source:
        return source.read().strip()
    return ""


def size_of(device: str) -> int:
    with _open_descriptor(device, os.O_RDONLY) as descriptor:
        return os.lseek(descriptor, 0, os.SEEK_END)


@contextmanager
def _open_descriptor(path: str, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
