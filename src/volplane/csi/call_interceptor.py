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

MAX_RECORDED_CALLS = 20_000  # calls; the oldest go first
ANY = "*"  # every method

Send = Callable[[], Awaitable[Any]]
Callback = Callable[["CsiCall"], Awaitable[None] | None]


class CsiCall(Struct):
    """One call as it went over the wire; `end` is 0 while it is under way."""

    number: int
    method: str
    caller: str  # the component
    address: str  # the socket
    request: str  # JSON, secrets stripped
    start: float  # time.monotonic
    end: float = 0.0
    code: str = ""  # as gRPC spells it; what the caller saw
    response: str = ""
    message: str = ""  # the error's words
    note: str = ""  # what the tap did to it

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.start)


class CallRule:
    """What is done to the next `times` calls of a method (0: to all), if `where` means them."""

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
        """The first call that it met. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            await self._seen.wait()
        return self.met[0]

    async def act(self, call: CsiCall, send: Send) -> Any:
        return await send()


class HoldCall(CallRule):
    """The call stands still before it is sent, until `release`."""

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
    """The caller gets an error: the call was never sent, or (`after`) its answer is thrown away."""

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
            await send()  # an error of the driver's own is the answer then: there was nothing to lose
        raise CallError(self.code, call.note)


class SendTwice(CallRule):
    """Sent again after its first answer; the caller gets the second. `answers` has both."""

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
    """A callback before the call is sent or (`after`) when the driver has answered."""

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
    """`calls` in the order of their start; rules are tried in the order in which they were made."""

    def __init__(self, on_end: Callable[[CsiCall], None] = lambda call: None) -> None:
        """`on_end` is called with each call that has ended."""
        self.calls: list[CsiCall] = []
        self._on_end = on_end
        self._rules: list[CallRule] = []
        self._number = 0
        self._dropped = 0  # the oldest, which are not kept any more

    # --- acting

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
        """No rules any more; what was held goes on."""
        for rule in list(self._rules):
            self.remove_rule(rule)

    # --- looking

    def calls_to(self, *methods: str) -> list[CsiCall]:
        return [call for call in self.calls if call.method in methods]

    def mark(self) -> int:
        """This moment, for `since`."""
        return self._dropped + len(self.calls)

    def since(self, mark: int) -> list[CsiCall]:
        """The calls that began after it, of those that are kept."""
        return self.calls[max(0, mark - self._dropped) :]

    async def intercept(
        self, method: str, caller: str, address: str, request: Message, send: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Where `CallerBase.call` hands a call over."""
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
