"""A driver that gives one answer to one call again and again: waiting longer tells nothing new.

Whoever waits for a cluster's objects waits here. There are two kinds: a call that is refused in the same
words each time, and an unmount that is answered with OK each time while its caller finds it still mounted
(where the mounts can be seen at that moment, the second such answer is enough).
What passes by itself (a driver that is away, busy, slow) is never taken for that, nor is what the tap has
done to a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct

from volplane.base.tasks import background
from volplane.csi.call_interceptor import CsiCall
from volplane.csi.outcome import Code
from volplane.testing.case import SPEC, CaseFailure

OK = Code.OK.name
_PASSES = {code.name for code in (Code.UNAVAILABLE, Code.ABORTED, Code.DEADLINE_EXCEEDED, Code.CANCELLED)} | {
    ""
}
# In use, still: who asks for this comes when the others have left.
_IN_USE = ("ControllerPublishVolume", "ControllerUnpublishVolume", "DeleteVolume")
_UNMOUNTS = ("NodeUnpublishVolume", "NodeUnstageVolume")


class RepeatLimit(Struct, frozen=True):
    """The same answer so often, and over so many seconds, is the last word."""

    times: int = 5
    seconds: float = 5.0


NORMAL_LIMIT = RepeatLimit()
SHORT_LIMIT = RepeatLimit(3, 2.0)  # where a driver is told from its repetitions


class RepeatedAnswer(Struct):
    code_and_message: tuple[str, str]  # code and message
    since: float
    times: int = 1


class LivelockDetector:
    def __init__(self, mounted: Callable[[CsiCall], bool] = lambda call: False) -> None:
        self._mounted = mounted  # what an unmount was for: tells of a call that has ended right now
        self._answers: dict[tuple[str, str], RepeatedAnswer] = {}
        self._reported: set[tuple[str, str]] = (
            set()
        )  # calls that have failed a case: no other case fails by them
        self._found: CsiCall | None = None
        self._event = asyncio.Event()
        self.limit = NORMAL_LIMIT

    @property
    def has_livelock(self) -> bool:
        """The driver has said its last word to somebody."""
        return self._found is not None

    def begin_case(self) -> None:
        """Another case, or its end: what hangs since before is not its fault."""
        self._reported |= {key for key, answer in self._answers.items() if answer.code_and_message[0] != OK}
        if self._found is not None:
            self._reported.add((self._found.method, self._found.request))
        self._answers.clear()
        self._found = None
        self._event.clear()
        self.limit = NORMAL_LIMIT

    def observe_call(self, call: CsiCall) -> None:
        """Of each call that has ended."""
        key = (call.method, call.request)
        if call.code == OK and call.method not in _UNMOUNTS:
            self._answers.pop(key, None)
            self._reported.discard(key)
            return
        if _is_transient(call) or key in self._reported:
            return
        words, known = (call.code, call.message), self._answers.get(key)
        if known is None or known.code_and_message != words:
            self._answers[key] = RepeatedAnswer(words, call.start)
            return
        known.times += 1
        if not self._found and self._is_livelock(known, call):
            self._found = call
            self._event.set()

    def _is_livelock(self, known: RepeatedAnswer, call: CsiCall) -> bool:
        if call.code == OK and self._mounted(call):
            return True
        enough = self.limit.times + (call.code == OK)  # once more than whoever was killed may ask
        return known.times >= enough and call.start - known.since >= self.limit.seconds

    async def wait_or_livelock(self, work: Awaitable[None]) -> None:
        """Wait for `work`. Raises Broken if the driver keeps it from coming to its end."""
        async with background(work, self._event.wait()) as (waited, found):
            await asyncio.wait({waited, found}, return_when=asyncio.FIRST_COMPLETED)
            if waited.done():
                await waited
                return
            assert self._found is not None
            raise CaseFailure(self._describe(self._found), section=f"{SPEC}: {self._found.method}")

    def _describe(self, call: CsiCall) -> str:
        times = self._answers[call.method, call.request].times
        if call.code == OK:
            return f"{call.method} is answered with OK {times} times, and what it was for is still mounted"
        why = f"{call.code} ({call.message})"
        return f"{call.method} is refused {times} times in the same words, and nothing changes: {why}"


def _is_transient(call: CsiCall) -> bool:
    in_use = call.code == Code.FAILED_PRECONDITION.name and call.method in _IN_USE
    return call.code in _PASSES or bool(call.note) or in_use
