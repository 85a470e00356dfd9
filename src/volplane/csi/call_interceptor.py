"""Records the calls to drivers, and can hold, delay, cut or repeat them.

A caller with an interceptor passes every call through it (`CallerBase.call`). A call that is cut after
the driver's answer shows how callers handle an unknown outcome: the driver has done its work, and the caller
gets an error.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message
from msgspec import Struct

from volplane.csi import redact
from volplane.csi.outcome import CallError, Code

MAX_RECORDED_CALLS = 20_000  # the oldest are dropped first
ANY = "*"  # every method

Send = Callable[[], Awaitable[Any]]
Callback = Callable[["CsiCall"], Awaitable[None] | None]


class CsiCall(Struct):
    """One call; `end` is 0 while it is in progress."""

    number: int
    method: str
    caller: str  # the component
    address: str  # the socket
    request: str  # JSON, secrets stripped
    start: float  # time.monotonic
    end: float = 0.0
    code: str = ""  # gRPC's name; what the caller got
    response: str = ""
    message: str = ""  # of the error
    note: str = ""  # what the interceptor did to it

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.start)


class CallRule:
    """What to do with the next `times` calls of a method (0: all of them) for which `where` is true."""

    def __init__(self, method: str, times: int = 1, where: Callable[[CsiCall], bool] | None = None) -> None:
        self.method, self.times, self._where = method, times, where
        self.met: list[CsiCall] = []
        self._seen = asyncio.Event()

    def try_match(self, call: CsiCall) -> bool:
        if self.method not in (ANY, call.method) or (self.times and len(self.met) >= self.times):
            return False
        if self._where is not None and not self._where(call):
            return False
        self.met.append(call)
        self._seen.set()
        return True

    async def wait_for_call(self, timeout: float | None = None) -> CsiCall:
        """The first call that matched. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            await self._seen.wait()
        return self.met[0]

    async def act(self, call: CsiCall, send: Send) -> Any:
        return await send()


class HoldCall(CallRule):
    """Hold the call before it is sent, until `release`."""

    def __init__(self, method: str, times: int = 1, where: Callable[[CsiCall], bool] | None = None) -> None:
        super().__init__(method, times, where)
        self._free = asyncio.Event()

    def release(self) -> None:
        self._free.set()

    async def act(self, call: CsiCall, send: Send) -> Any:
        call.note = "held"
        await self._free.wait()
        return await send()


class DelayCall(CallRule):
    def __init__(
        self, method: str, seconds: float, times: int = 1, where: Callable[[CsiCall], bool] | None = None
    ) -> None:
        super().__init__(method, times, where)
        self.seconds = seconds

    async def act(self, call: CsiCall, send: Send) -> Any:
        call.note = f"delayed {self.seconds:g} s"
        await asyncio.sleep(self.seconds)
        return await send()


class CutCall(CallRule):
    """Raise an error: the call is not sent, or (`after`) the driver's answer is discarded."""

    def __init__(
        self,
        method: str,
        *,
        after: bool = False,
        code: Code = Code.UNAVAILABLE,
        times: int = 1,
        where: Callable[[CsiCall], bool] | None = None,
    ) -> None:
        super().__init__(method, times, where)
        self.after, self.code = after, code

    async def act(self, call: CsiCall, send: Send) -> Any:
        call.note = f"cut {'after' if self.after else 'before'} the driver's answer"
        if self.after:
            await send()  # an error of the driver is raised as it is
        raise CallError(self.code, call.note)


class SendTwice(CallRule):
    """Send the call again after the first answer; the caller gets the second. `answers` has both."""

    def __init__(self, method: str, times: int = 1, where: Callable[[CsiCall], bool] | None = None) -> None:
        super().__init__(method, times, where)
        self.answers: list[tuple[Any, Any]] = []

    async def act(self, call: CsiCall, send: Send) -> Any:
        call.note = "sent twice"
        first = await send()
        second = await send()
        self.answers.append((first, second))
        return second


class RunCallback(CallRule):
    """Run a callback before the call is sent, or (`after`) after the driver's answer."""

    def __init__(
        self,
        method: str,
        callback: Callback,
        *,
        after: bool = False,
        times: int = 1,
        where: Callable[[CsiCall], bool] | None = None,
    ) -> None:
        super().__init__(method, times, where)
        self._callback, self._after = callback, after

    async def act(self, call: CsiCall, send: Send) -> Any:
        if not self._after:
            await self._call(call)
            return await send()
        reply = await send()
        await self._call(call)
        return reply

    async def _call(self, call: CsiCall) -> None:
        answer = self._callback(call)
        if inspect.isawaitable(answer):
            await answer


class CallInterceptor:
    """`calls` are in the order of their start; rules are tried in the order in which they were added."""

    def __init__(self, on_end: Callable[[CsiCall], None] = lambda call: None) -> None:
        """`on_end` is called with each call that has ended."""
        self.calls: list[CsiCall] = []
        self.unanswered: set[str] = set()  # methods that did not answer; kept by the test runner
        self._on_end = on_end
        self._rules: list[CallRule] = []
        self._number = 0
        self._dropped = 0  # the oldest, which were removed

    # --- rules

    def add_rule(self, rule: CallRule) -> CallRule:
        self._rules.append(rule)
        return rule

    def hold(self, method: str, times: int = 1, where: Callable[[CsiCall], bool] | None = None) -> HoldCall:
        rule = HoldCall(method, times, where)
        self.add_rule(rule)
        return rule

    def delay(
        self, method: str, seconds: float, times: int = 1, where: Callable[[CsiCall], bool] | None = None
    ) -> DelayCall:
        rule = DelayCall(method, seconds, times, where)
        self.add_rule(rule)
        return rule

    def cut(
        self,
        method: str,
        *,
        after: bool = False,
        code: Code = Code.UNAVAILABLE,
        times: int = 1,
        where: Callable[[CsiCall], bool] | None = None,
    ) -> CutCall:
        rule = CutCall(method, after=after, code=code, times=times, where=where)
        self.add_rule(rule)
        return rule

    def send_twice(
        self, method: str, times: int = 1, where: Callable[[CsiCall], bool] | None = None
    ) -> SendTwice:
        rule = SendTwice(method, times, where)
        self.add_rule(rule)
        return rule

    def before(self, method: str, callback: Callback, times: int = 1) -> RunCallback:
        rule = RunCallback(method, callback, times=times)
        self.add_rule(rule)
        return rule

    def after(self, method: str, callback: Callback, times: int = 1) -> RunCallback:
        rule = RunCallback(method, callback, after=True, times=times)
        self.add_rule(rule)
        return rule

    def remove_rule(self, rule: CallRule) -> None:
        if rule in self._rules:
            self._rules.remove(rule)
        if isinstance(rule, HoldCall):
            rule.release()

    def remove_rules(self) -> None:
        """Remove all rules; held calls go on."""
        for rule in list(self._rules):
            self.remove_rule(rule)

    # --- recorded calls

    def calls_to(self, *methods: str) -> list[CsiCall]:
        return [call for call in self.calls if call.method in methods]

    def mark(self) -> int:
        """The present position, for `since`."""
        return self._dropped + len(self.calls)

    def since(self, mark: int) -> list[CsiCall]:
        """The recorded calls that began after a mark."""
        return self.calls[max(0, mark - self._dropped) :]

    async def intercept(
        self, method: str, caller: str, address: str, request: Message, send: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Record a call, apply a rule to it, and send it."""
        call = self._record_call(method, caller, address, request)
        rule = next((r for r in self._rules if r.try_match(call)), None)
        try:
            reply = await (send() if rule is None else rule.act(call, send))
        except CallError as error:
            call.code, call.message = error.code.name, error.message
            raise
        except BaseException:
            call.code = Code.CANCELLED.name
            raise
        else:
            call.code, call.response = Code.OK.name, redact.text(reply)
            return reply
        finally:
            call.end = time.monotonic()
            self._end_call(call)

    def _end_call(self, call: CsiCall) -> None:
        self._on_end(call)

    def _record_call(self, method: str, caller: str, address: str, request: Message) -> CsiCall:
        self._number += 1
        call = CsiCall(self._number, method, caller, address, redact.text(request), time.monotonic())
        self.calls.append(call)
        if len(self.calls) > MAX_RECORDED_CALLS:
            del self.calls[: MAX_RECORDED_CALLS // 10]
            self._dropped += MAX_RECORDED_CALLS // 10
        return call
