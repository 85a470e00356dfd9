"""The first process of a container, by a descriptor: its exit is noticed, and it can be killed for sure."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress

from volplane.host.processes import wait_readable

log = logging.getLogger(__name__)


class FirstProcess:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._ended = asyncio.Event()
        self._waiting: asyncio.Task[None] | None = asyncio.create_task(self._wait(), name="process exit")

    @classmethod
    def open(cls, pid: int) -> FirstProcess | None:
        """The process of a pid that the runtime has just reported; None if there is none."""
        if pid <= 0:
            return None
        try:
            return cls(os.pidfd_open(pid))
        except ProcessLookupError:
            return None
        except OSError as error:
            log.warning("process %d cannot be watched: %s", pid, error)
            return None

    async def _wait(self) -> None:
        await wait_readable(self._descriptor)
        self._ended.set()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    async def wait(self) -> None:
        """Wait until it has exited, or is no longer watched."""
        await self._ended.wait()

    async def kill(self) -> None:
        """Kill it and wait until it has exited."""
        self.send(signal.SIGKILL)
        await self._ended.wait()

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting.add_done_callback(lambda _: os.close(self._descriptor))
            self._waiting = None
            self._ended.set()
