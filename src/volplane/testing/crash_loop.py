"""Detect a driver in a cluster that ends by itself after each start, instead of waiting for it.

A driver that was killed may leave state that it cannot read, and then never starts again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from signal import SIGKILL, SIGTERM

from msgspec import Struct

from volplane.api.core import ContainerStatus, Pod
from volplane.testing.kill_driver import NAME

INTERVAL = 0.5  # seconds between two looks
ENDS, SECONDS = 5, 5.0  # so many ends by itself, over so many seconds, are a loop
STABLE = 3.0  # seconds after which a running driver has started
_OTHERS_FAULT = (0, 128 + SIGKILL, 128 + SIGTERM)  # exit codes: it was stopped or killed


class FailedStarts(Struct):
    restarts: int  # the pod's restart count at the last look
    times: int = 0
    since: float = 0.0
    changed: float = 0.0


class CrashLoopDetector:
    def __init__(self, read_log: Callable[[str], str]) -> None:
        self._read_log = read_log  # the end of the log of a pod's driver
        self._starts: dict[str, FailedStarts] = {}  # by pod UID
        self.reason = ""  # why the driver does not run

    def begin_case(self) -> None:
        self._starts.clear()
        self.reason = ""

    async def wait(self, pods: Callable[[], Iterable[Pod]]) -> None:
        """Wait until the driver in one of the pods is in a loop."""
        while not self.reason:
            for pod in pods():
                self.observe(pod, time.monotonic())
            if not self.reason:
                await asyncio.sleep(INTERVAL)

    def observe(self, pod: Pod, now: float) -> None:
        for status in pod.status.container_statuses:
            if status.name == NAME:
                self._observe_container(pod, status, now)

    def _observe_container(self, pod: Pod, status: ContainerStatus, now: float) -> None:
        known = self._starts.setdefault(pod.uid, FailedStarts(status.restart_count, 0, now, now))
        if status.restart_count == known.restarts:
            if status.state.running is not None and now - known.changed >= STABLE:
                known.times, known.since = 0, now
            return
        ended = status.state.terminated or status.last_state.terminated
        failed = ended is not None and ended.exit_code not in _OTHERS_FAULT
        known.times = known.times + status.restart_count - known.restarts if failed else 0
        known.since = known.since if failed else now
        known.restarts, known.changed = status.restart_count, now
        if ended is not None and known.times >= ENDS and now - known.since >= SECONDS:
            self.reason = (
                f"the driver does not start again: in pod {pod.name} it has ended {known.times} times by"
                f" itself, with code {ended.exit_code}: {self._read_log(pod.name) or 'no output'}"
            )
