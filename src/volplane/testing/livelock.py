"""Detect a driver that answers the same call in the same way again and again, instead of waiting for it.

There are two kinds of livelock: a call that fails each time with the same error, and an unmount that returns
OK while the volume stays mounted (if the mounts can be read at that moment, the second such answer is
enough). Transient errors (the driver is unavailable, busy or slow) do not count, nor do calls that the
interceptor has disturbed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from volplane.base.tasks import background
from volplane.csi.call_interceptor import CsiCall
from volplane.csi.outcome import Code
from volplane.testing.case import SPEC, CaseFailure
from volplane.testing.error_messages import without_names

T = TypeVar("T")
OK = Code.OK.name
_TRANSIENT_CODES = {
    code.name for code in (Code.UNAVAILABLE, Code.ABORTED, Code.DEADLINE_EXCEEDED, Code.CANCELLED)
} | {""}
# Transient: the volume is in use, and will be free when the other users have left.
_IN_USE = ("ControllerPublishVolume", "ControllerUnpublishVolume", "DeleteVolume")
_UNMOUNTS = ("NodeUnpublishVolume", "NodeUnstageVolume")


class RepeatLimit(Struct, frozen=True):
    """So many identical answers, over so many seconds, are a livelock."""

    times: int = 5
    seconds: float = 5.0


NORMAL_LIMIT = RepeatLimit()
SHORT_LIMIT = RepeatLimit(3, 2.0)  # for cases that detect a faulty driver by its repetitions


class RepeatedAnswer(Struct):
    code_and_message: tuple[str, str]
    since: float
    times: int = 1


class LivelockDetector:
    def __init__(
        self,
        mounted: Callable[[CsiCall], bool] = lambda call: False,
        wait_for_crash_loop: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        self._mounted = mounted  # whether the volume of an unmount that has just ended is still mounted
        self._wait_for_crash_loop = wait_for_crash_loop  # returns why the driver does not run
        self._answers: dict[tuple[str, str], RepeatedAnswer] = {}
        self._reported: set[tuple[str, str]] = set()  # calls that have already failed a case
        self._found: CsiCall | None = None
        self._event = asyncio.Event()
        self.limit = NORMAL_LIMIT

    @property
    def has_livelock(self) -> bool:
        """Whether a livelock was detected."""
        return self._found is not None

    def begin_case(self) -> None:
        """Start another case: calls that hang since before do not count."""
        self._reported |= {key for key, answer in self._answers.items() if answer.code_and_message[0] != OK}
        if self._found is not None:
            self._reported.add((self._found.method, self._found.request))
        self._answers.clear()
        self._found = None
        self._event.clear()
        self.limit = NORMAL_LIMIT

    def observe_call(self, call: CsiCall) -> None:
        """Called for each call that has ended."""
        key = (call.method, call.request)
        if call.code == OK and call.method not in _UNMOUNTS:
            self._answers.pop(key, None)
            self._reported.discard(key)
            return
        if _is_transient(call) or key in self._reported:
            return
        answer, known = (call.code, without_names(call.message)), self._answers.get(key)
        if known is None or known.code_and_message != answer:
            self._answers[key] = RepeatedAnswer(answer, call.start)
            return
        known.times += 1
        if not self._found and self._is_livelock(known, call):
            self._found = call
            self._event.set()

    def _is_livelock(self, known: RepeatedAnswer, call: CsiCall) -> bool:
        if call.code == OK and self._mounted(call):
            return True
        enough = self.limit.times + (call.code == OK)  # one more than a restarted caller may need
        return known.times >= enough and call.start - known.since >= self.limit.seconds

    async def wait_or_livelock(self, work: Awaitable[T]) -> T:
        """Wait for `work`. Raises CaseFailure if a livelock of the driver, or its end, blocks it."""
        async with background(work, self._event.wait(), self._crash_loop()) as (waited, *others):
            await asyncio.wait({waited, *others}, return_when=asyncio.FIRST_COMPLETED)
            if waited.done():
                result: T = await waited
                return result
            if self._found is None:
                raise CaseFailure(await others[-1], section=f"{SPEC}: Supervised Lifecycle Management")
            raise CaseFailure(self._describe(self._found), section=f"{SPEC}: {self._found.method}")

    async def _crash_loop(self) -> str:
        if self._wait_for_crash_loop is None:
            await asyncio.Event().wait()  # never
            return ""
        return await self._wait_for_crash_loop()

    def _describe(self, call: CsiCall) -> str:
        times = self._answers[call.method, call.request].times
        if call.code == OK:
            return f"{call.method} returned OK {times} times, and the volume is still mounted"
        why = f"{call.code} ({call.message})"
        return f"{call.method} failed {times} times with the same error: {why}"


def _is_transient(call: CsiCall) -> bool:
    in_use = call.code == Code.FAILED_PRECONDITION.name and call.method in _IN_USE
    return call.code in _TRANSIENT_CODES or bool(call.note) or in_use
