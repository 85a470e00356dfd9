"""A container's log for `kubectl logs`: a part of it, and with follow what comes later.

Its files are written by the shim, whole lines in the format time, stream, F or P, text. Following uses
inotify and ends when the container has exited and its last line has been sent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from msgspec import Struct

from volplane.base import clock
from volplane.base.tasks import cancel_and_wait
from volplane.host import Host, NodePaths, inotify
from volplane.host.inotify import Inotify
from volplane.node.api.errors import KubeletApiError
from volplane.node.api.log_files import LogFiles
from volplane.node.containers.base import ContainerError
from volplane.node.pods.records import ContainerAttempt
from volplane.node.pods.runtimes import container_id
from volplane.web import Query

if TYPE_CHECKING:
    from volplane.node.api.app import ContainerTarget

ContainerEnd = Coroutine[None, None, None]  # ends with the container

CHUNK = 256 << 10
LONG_AGO = 10 * 365 * 24 * 3600  # seconds; limits sinceSeconds to a valid date
LONGEST = 1 << 20  # bytes of a line; writers split lines long before, so a longer one is damaged
DIGITS = 12  # of a number in a request
BLOCK = 64 << 10  # read backwards in these steps for the last lines


class LogRequest(Struct, frozen=True):
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail: int | None = None
    since: datetime | None = None
    limit: int | None = None
    stream: str = "All"

    @classmethod
    def from_query(cls, query: Query) -> LogRequest:
        since = None
        if seconds := _number(query, "sinceSeconds"):
            since = clock.wall() - timedelta(seconds=min(seconds, LONG_AGO))
        elif moment := query.get("sinceTime"):
            try:
                since = clock.parse(moment)
            except ValueError as error:
                raise KubeletApiError(400, f"invalid sinceTime: {error}") from error
        return cls(
            follow=query.flag("follow"),
            previous=query.flag("previous"),
            timestamps=query.flag("timestamps"),
            tail=_number(query, "tailLines"),
            since=since,
            limit=_number(query, "limitBytes"),
            stream=query.get("stream") or "All",
        )


def _number(query: Query, name: str) -> int | None:
    text = query.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise KubeletApiError(400, f"invalid {name}: must be a number that is not negative")
    return int(text) if len(text) <= DIGITS else 10**DIGITS


async def read_log(
    options: LogRequest, target: ContainerTarget, host: Host, paths: NodePaths
) -> AsyncGenerator[bytes, None]:
    attempt = _attempt(options, target)
    pod = target.worker.pod
    path = paths.real(paths.log_file(pod.namespace, pod.name, pod.uid, target.name, attempt.number))
    return _LogReader(options, path, host).read(_wait_for_end(target, attempt) if options.follow else None)


def _attempt(options: LogRequest, target: ContainerTarget) -> ContainerAttempt:
    pod, record = target.worker.pod, target.record
    if options.previous:
        # During a back-off the attempt that has exited is still the current one.
        found = record.current if record.waiting is not None else record.previous
        if found is None or found.running:
            raise KubeletApiError(
                400, f'previous terminated container "{target.name}" in pod "{pod.name}" not found'
            )
        return found
    if record.current is None:
        why = record.waiting.reason if record.waiting else "ContainerCreating"
        raise KubeletApiError(
            400, f'container "{target.name}" in pod "{pod.name}" is waiting to start: {why}'
        )
    return record.current


async def _wait_for_end(target: ContainerTarget, attempt: ContainerAttempt) -> None:
    """Wait until this attempt has exited."""
    if not attempt.running:
        return
    try:
        await target.worker.deps.containers.runtimes.wait(
            container_id(target.worker.uid, target.name, attempt.number)
        )
    except ContainerError:
        return


class _LogReader:
    def __init__(self, options: LogRequest, path: str, host: Host) -> None:
        self._options, self._path, self._host = options, path, host
        self._left = options.limit
        self._rest = b""  # an incomplete line
        self._fresh = True  # the next text starts a line

    async def read(self, end: ContainerEnd | None) -> AsyncGenerator[bytes, None]:
        """Read the log; with `end`, follow it until then."""
        files = LogFiles(self._path, follow=end is not None)
        await self._host.call(files.open, self._options.tail, self._options.since)
        try:
            async for piece in self._read_available(files) if end is None else self._follow(files, end):
                yield piece
        finally:
            if end is not None:
                end.close()  # it may never have been awaited
            files.close()

    async def _read_available(self, files: LogFiles) -> AsyncGenerator[bytes, None]:
        while data := await self._host.call(files.read, CHUNK):
            if piece := self._format(data):
                yield piece
            if self._left == 0:
                return

    async def _follow(self, files: LogFiles, end: ContainerEnd) -> AsyncGenerator[bytes, None]:
        ending = asyncio.create_task(end)
        async with Inotify() as watch:
            watch.add(os.path.dirname(self._path), inotify.MODIFY | inotify.CREATE)
            try:
                while True:
                    over = ending.done()  # checked before the last read, so that no line is missed
                    async for piece in self._read_available(files):
                        yield piece
                    if over or self._left == 0:
                        return
                    change = asyncio.create_task(watch.read())
                    try:
                        await asyncio.wait({change, ending}, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        await cancel_and_wait(change)
            finally:
                await cancel_and_wait(ending)

    def _format(self, data: bytes) -> bytes:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > LONGEST:  # sent as it is, to limit memory
            lines.append(self._rest)
            self._rest = b""
        piece = b"".join(self._texts(lines))
        if self._left is not None:
            piece = piece[: self._left]
            self._left -= len(piece)
        return piece

    def _texts(self, lines: list[bytes]) -> Iterator[bytes]:
        for line in lines:
            stamp, stream, mark, text = (*line.split(b" ", 3), b"", b"", b"")[:4]
            if not self._matches(stamp, stream):
                continue
            if self._fresh and self._options.timestamps:
                yield stamp + b" "
            self._fresh = mark != b"P"
            yield text + (b"\n" if self._fresh else b"")

    def _matches(self, stamp: bytes, stream: bytes) -> bool:
        if self._options.stream != "All" and stream.decode().capitalize() != self._options.stream:
            return False
        if self._options.since is None:
            return True
        try:
            return clock.parse(stamp.decode()) >= self._options.since
        except ValueError:
            return False
