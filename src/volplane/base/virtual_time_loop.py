"""An event loop with virtual time: when the loop is idle, its clock jumps to the next timer.

Only idle time is skipped. While real work is going on elsewhere (in a thread of an executor, bytes in a
socket), the clock stands still, so that no timeout fires because a disk was slow.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)  # wall time at loop time zero, the same in every run
SOCKET_GRACE = 0.002  # real seconds that a peer gets to answer before time jumps
WAIT_TIMEOUT = 10.0  # real seconds after which work that hangs no longer stops the clock


class _TimeJumpSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.leapt = 0.0  # virtual seconds passed
        self.busy = 0  # number of real works in flight

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # no timer to jump to
            return super().select(None)
        if ready := super().select(0):
            return ready
        if timeout <= 0:
            return []
        if ready := super().select(self._real_wait()):
            return ready
        self.leapt += timeout
        return []

    def _real_wait(self) -> float:
        if self.busy:
            return WAIT_TIMEOUT
        sockets = len(self.get_map()) - 1  # the loop's own wake-up pipe is always there
        return SOCKET_GRACE if sockets else 0


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leaping = _TimeJumpSelector()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.leapt

    def wall(self) -> float:
        """Virtual wall time, in seconds since 1970."""
        return EPOCH.timestamp() + self.time()

    @contextmanager
    def real_work(self) -> Iterator[None]:
        """Stop the clock while work runs that the loop cannot see, such as in a thread."""
        self._leaping.busy += 1
        try:
            yield
        finally:
            self._leaping.busy -= 1

    def run_in_executor(  # type: ignore[override]  # typeshed spells the variadic arguments differently by version
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> Future[Any]:
        future: Future[Any] = super().run_in_executor(executor, func, *args)
        self.count_work(future)
        return future

    def count_work(self, future: Future[Any]) -> None:
        """Stop the clock until the future is done: work in a thread ends it."""
        self._leaping.busy += 1
        future.add_done_callback(self._work_done)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait until the threads have ended. From Python 3.12 on there is a timeout, which is not virtual."""
        with self.real_work():
            await super().shutdown_default_executor()

    def _work_done(self, _: Future[Any]) -> None:
        self._leaping.busy -= 1


def real_work() -> AbstractContextManager[None]:
    """Stop the clock of the running loop, if it is virtual."""
    loop = asyncio.get_running_loop()
    return loop.real_work() if isinstance(loop, VirtualLoop) else _NOTHING


_NOTHING = nullcontext()
