"""Notice the exits of containers.

A runtime with container events reports each. Without them (containerd before 1.7) CRI offers nothing but
the list of containers, which upstream's kubelet reads every second. Where the runtime tells a container's
pid, its exit wakes the watch at once, and the list is read rarely, as a backstop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from volplane.base.backoff import Backoff, Failures
from volplane.base.retry import retry
from volplane.base.tasks import TaskSet
from volplane.csi.outcome import Code
from volplane.node.containers.cri import v1
from volplane.node.containers.cri.client import CriClient, CriError
from volplane.node.containers.cri.first_process import FirstProcess

if TYPE_CHECKING:
    from volplane.node.containers.cri.runtime import CriContainer

log = logging.getLogger(__name__)

RELIST_INTERVAL = 1.0  # seconds, as upstream's kubelet
RELIST_RETRY = Backoff(0.1, 1.0)  # while the runtime is away
BACKSTOP_INTERVAL = 10.0  # seconds, where exits are reported otherwise
RECORD_WAIT = Backoff(0.01, 1.0)  # until the runtime has recorded an exit that was seen
EVENTS_RETRY = Backoff(1.0, 30.0)


class ContainerWatch:
    """Calls `note_exit` for containers that may have exited."""

    def __init__(
        self,
        cri: CriClient,
        labels: dict[str, str],
        containers: dict[str, CriContainer],
        note_exit: Callable[[str, CriContainer], Awaitable[None]],
    ) -> None:
        self._cri, self._labels, self._containers, self._note_exit = cri, labels, containers, note_exit
        self._tasks = TaskSet()
        self.has_events = False  # the runtime reports exits
        self._events_lost = asyncio.Event()
        self._news = asyncio.Event()
        self._begun = False

    def add(self, id: str, container: CriContainer) -> None:
        """Watch a running container."""
        if not self._begun:
            self._begun = True
            self._tasks.start(self._follow_events(), "events of the runtime")
            self._tasks.start(self._relist_forever(), "list of containers")
        if container.process is not None:
            self._tasks.start(self._await_process(id, container, container.process), f"exit of {id}")
        self._news.set()

    async def close(self) -> None:
        await self._tasks.close()

    async def _await_process(self, id: str, container: CriContainer, process: FirstProcess) -> None:
        await process.wait()
        failures = Failures(RECORD_WAIT)
        while container.state.running:
            try:
                await self._note_exit(id, container)
            except CriError as error:
                log.debug("exit of %s: %s", id, error)
            if container.state.running:
                await asyncio.sleep(failures.next_delay())

    async def _follow_events(self) -> None:
        failures = Failures(EVENTS_RETRY)
        while await self._read_events(failures):
            if self.has_events:  # exits in between are found in the list
                self.has_events = False
                self._events_lost.set()
            await asyncio.sleep(failures.next_delay())

    async def _read_events(self, failures: Failures) -> bool:
        """Read one stream of events until it ends. Returns whether to open another one."""
        events = self._cri.container_events()
        while True:
            try:
                event = await anext(events)
            except StopAsyncIteration:
                return True
            except CriError as error:
                return error.code is not Code.UNIMPLEMENTED
            self.has_events = True
            failures.reset()
            if event.container_event_type == v1.CONTAINER_STOPPED_EVENT:
                await self._handle_event(event.container_id)

    async def _handle_event(self, cri_id: str) -> None:
        for id, container in self._running():
            if container.cri_id != cri_id:
                continue
            try:
                await self._note_exit(id, container)
            except CriError as error:  # the stream may go on; the exit is found in the list
                log.debug("exit of %s: %s", id, error)
                self._events_lost.set()

    async def _relist_forever(self) -> None:
        while True:
            if not self._running():
                self._news.clear()
                await self._news.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval()):
                    await self._events_lost.wait()
            self._events_lost.clear()
            await retry(self._relist, on=CriError, backoff=RELIST_RETRY, report=_report)

    def _interval(self) -> float:
        reported = self.has_events or all(each.process is not None for _, each in self._running())
        return BACKSTOP_INTERVAL if reported else RELIST_INTERVAL

    async def _relist(self) -> None:
        found = {each.id: each.state for each in await self._cri.list_containers(self._labels)}
        for id, container in self._running():
            if found.get(container.cri_id) != v1.CONTAINER_RUNNING:
                await self._note_exit(id, container)

    def _running(self) -> list[tuple[str, CriContainer]]:
        return [(id, each) for id, each in self._containers.items() if each.state.running]


def _report(error: Exception) -> None:
    log.debug("containers cannot be listed: %s", error)
