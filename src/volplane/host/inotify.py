"""Changes of files and directories, by inotify(7).

Watches are added by path, events are read in batches. The kernel may drop events and then sends an overflow
event without a watch; the caller must scan again.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import struct

from msgspec import Struct

MODIFY = 0x2
ATTRIB = 0x4
CLOSE_WRITE = 0x8
CLOSE_NOWRITE = 0x10
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
OVERFLOW = 0x4000
ONLY_DIRECTORY = 0x1000000
IS_DIRECTORY = 0x40000000

ENTRIES = CREATE | DELETE | MOVED_FROM | MOVED_TO

_libc = ctypes.CDLL(None, use_errno=True)
_HEAD = struct.Struct("iIII")


class InotifyEvent(Struct, frozen=True):
    directory: str  # the watched path; "" after an overflow
    name: str  # of the entry inside it; "" for the watched path itself
    mask: int


class Inotify:
    """`async with Inotify() as watch: watch.add(path, CREATE); events = await watch.read()`"""

    def __init__(self) -> None:
        self._descriptor = _raise_on_error(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify")
        self._paths: dict[int, str] = {}

    def add(self, path: str, mask: int) -> None:
        found = _libc.inotify_add_watch(self._descriptor, os.fsencode(path), ctypes.c_uint32(mask))
        self._paths[_raise_on_error(found, path)] = path

    def fileno(self) -> int:
        return self._descriptor

    async def read(self) -> list[InotifyEvent]:
        """The next events, at least one."""
        while True:
            if events := self._read_events():
                return events
            await self._wait_until_readable()

    def wait(self, seconds: float) -> list[InotifyEvent]:
        """For a thread: the next events, or none within this time."""
        poll = select.poll()  # unlike select(), it takes any descriptor
        poll.register(self._descriptor, select.POLLIN)
        poll.poll(seconds * 1000)
        return self._read_events()

    async def _wait_until_readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._descriptor, _set_ready, ready)
        try:
            await ready
        finally:
            loop.remove_reader(self._descriptor)

    def _read_events(self) -> list[InotifyEvent]:
        try:
            data = os.read(self._descriptor, 65536)
        except BlockingIOError:
            return []
        events, offset = [], 0
        while offset < len(data):
            watch, mask, _, length = _HEAD.unpack_from(data, offset)
            name = data[offset + _HEAD.size : offset + _HEAD.size + length].rstrip(b"\0")
            events.append(InotifyEvent(self._paths.get(watch, ""), os.fsdecode(name), mask))
            offset += _HEAD.size + length
        return events

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    async def __aenter__(self) -> Inotify:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _raise_on_error(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), what)
    return result
