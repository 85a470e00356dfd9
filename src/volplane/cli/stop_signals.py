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
