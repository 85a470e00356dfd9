"""How a verb that serves is stopped: by SIGINT or SIGTERM, on any operating system."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import suppress
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM)
HANG_TIMEOUT = 20.0  # seconds without a response, while stopping, after which the event loop counts as hung
START_TIMEOUT = 15.0  # seconds that a start gets to complete after it is asked to stop


class StopSignals:
    """SIGINT and SIGTERM: the first sets `stop`. A SIGINT after it, a second Ctrl-C, exits at once; a SIGTERM
    does not, because service managers and scripts repeat it.

    The handlers are Python's and not the loop's, because a loop that hangs in a system call handles no
    signals. After the first signal a thread watches the loop, and exits if the loop does not respond.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        self._loop, self._stop = loop, stop
        self._watch = threading.Thread(target=self._watch_loop, name="stop", daemon=True)
        self._answered = threading.Event()

    def listen(self) -> None:
        for number in STOPS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._watch.ident is None:
            self._watch.start()
            with suppress(RuntimeError):  # the loop is closed: the work has ended
                self._loop.call_soon_threadsafe(self._stop.set)
        elif number == signal.SIGINT:
            os._exit(130)

    def _watch_loop(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            while True:
                self._answered.clear()
                self._loop.call_soon_threadsafe(self._answered.set)
                if not self._answered.wait(HANG_TIMEOUT):
                    break
                time.sleep(1.0)
            os.write(2, b"volplane: the process hangs and does not stop; exiting without cleanup\n")
            os._exit(1)


async def end_start(stop: asyncio.Event, start: asyncio.Task[None], *, may_exit: bool = True) -> None:
    """After a stop request, let the start complete, so that everything can be taken down in order. Cancel a
    start that hangs. `may_exit`: exit if it does not end then.
    """
    await stop.wait()
    print(
        f"stopping when the start is complete, or after {START_TIMEOUT:.0f} s; "
        "press Ctrl-C again to exit at once",
        flush=True,
    )
    await asyncio.sleep(START_TIMEOUT)
    start.cancel()
    if not may_exit:
        return
    await asyncio.sleep(START_TIMEOUT)
    print("the start does not end: exiting without cleanup", flush=True)
    os._exit(1)
