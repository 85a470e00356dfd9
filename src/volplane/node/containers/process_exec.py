"""A command running inside a process container: its streams and its exit code."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import struct
import termios
from contextlib import suppress

from volplane.node.containers.launcher_client import TIMEOUT, LauncherReply

EXIT_UNKNOWN = 255  # the helper was killed before it reported an exit code


class _PipeEnd:
    """One end of a pipe or terminal that may be closed while a coroutine waits for it."""

    def __init__(self, descriptor: int, *, owned: bool = True) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor, self._owned = descriptor, owned
        self._waiter: asyncio.Future[None] | None = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _forget(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        if self._descriptor >= 0:
            self._forget()
            if self._owned:
                os.close(self._descriptor)
            self._descriptor = -1
            self._wake()


class PipeReader(_PipeEnd):
    async def read(self, limit: int = 65536) -> bytes:
        while self._descriptor >= 0:
            try:
                return os.read(self._descriptor, limit)
            except BlockingIOError:
                await self._ready()
            except OSError as error:
                if error.errno != errno.EIO:  # EIO: the other end of the terminal is closed
                    raise
                break
        return b""

    async def _ready(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        loop.add_reader(self._descriptor, self._wake)
        try:
            await self._waiter
        finally:
            self._forget()

    def _forget(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)


class PipeWriter(_PipeEnd):
    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._descriptor >= 0:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                await self._ready()
            except OSError:  # the command has closed its input
                return

    async def _ready(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        loop.add_writer(self._descriptor, self._wake)
        try:
            await self._waiter
        finally:
            self._forget()

    def _forget(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_writer(self._descriptor)


class ProcessExec:
    def __init__(
        self,
        reply: LauncherReply,
        *,
        stdin: PipeWriter | None,
        stdout: PipeReader,
        stderr: PipeReader | None,
        terminal: int = -1,
    ) -> None:
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._reply, self._terminal = reply, terminal
        self._code: int | None = None
        self._waiting = asyncio.Lock()

    def resize(self, width: int, height: int) -> None:
        if self._terminal >= 0:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("4H", height, width, 0, 0))

    async def wait(self) -> int:
        async with self._waiting:
            if self._code is None:
                answer = await self._reply.read_answer()
                self._code = EXIT_UNKNOWN if answer is None else int(answer["exit"])
            return self._code

    async def close(self) -> None:
        self._reply.hang_up()  # the helper kills the command if it still runs
        with suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT):
                await self.wait()
        self._reply.close()
        self._terminal = -1
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
