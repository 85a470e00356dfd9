"""Run cases one after the other, and collect what is needed to understand failures.

A case gets random numbers from the seed and its name, so that it behaves the same alone as in a full run. Its
result has its calls and the end of the driver's logs. A driver that does not respond is killed and restarted
before the next case.
"""

from __future__ import annotations

import asyncio
import re
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from random import Random
from typing import Protocol, TypeVar, cast

from msgspec import Struct, structs

from volplane.base import clock
from volplane.base.tasks import background
from volplane.csi.call_interceptor import CallInterceptor, CsiCall
from volplane.csi.outcome import CallError, Code
from volplane.csi.redact import STRIPPED
from volplane.csi.services import METHODS
from volplane.testing.capabilities import DriverCapabilities
from volplane.testing.case import SPEC, Case, CaseFailure, NotSupported
from volplane.testing.driver_process import DriverStartError

CLEANUP_TIMEOUT = 120.0  # seconds; less if the timeout of a case is shorter
RECOVERY_TIMEOUT = 30.0  # seconds to find out what a case waited for, or to restart a driver
HANG_LIMIT = 5.0  # seconds for a method that did not answer in an earlier case
HANG_INTERVAL = 0.5  # seconds between two looks at such calls
MIN_SECRET_LENGTH = 4  # shorter strings occur everywhere, and are not redacted

Result = TypeVar("Result")


class CaseVerdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class CallCount(Struct):
    """The calls of one method in one case, without those that clean up."""

    ok: int = 0
    failed: int = 0
    notes: dict[str, int] = {}  # what the interceptor did to them


class CaseResult(Struct):
    name: str
    section: str
    demands: str
    verdict: CaseVerdict
    reason: str = ""
    seconds: float = 0.0
    round: int = 1
    repeated: int = 0  # calls that the environment repeated because of the driver's answer
    calls: list[CsiCall] = []
    logs: dict[str, str] = {}  # by instance, for failed cases
    began: float = 0.0  # time.monotonic, as the times of the calls
    verdict_at: float = 0.0  # time of the verdict: later calls clean up
    needs: tuple[str, ...] | None = None  # of the case; None for a spec of csi-sanity
    call_counts: dict[str, CallCount] = {}  # by method
    known: str = ""  # for a known failure: where it is listed, and the reason given there


class CaseSettings(Struct, frozen=True, kw_only=True):
    focus: str = ""
    skip: str = ""
    seed: int = 0
    repeat: int = 1
    timeout: float = 60.0  # seconds for one case


class CaseEnvironment(Protocol):
    """The environment in which cases run."""

    capabilities: DriverCapabilities
    tap: CallInterceptor
    random: Random
    case_timeout: float  # seconds
    repeated: int
    secrets: dict[str, str]

    async def clean(self) -> list[str]: ...

    async def recover(self) -> None: ...

    async def describe_wait(self) -> str: ...

    def log_positions(self) -> dict[str, int]: ...

    def logs(self, since: dict[str, int]) -> dict[str, str]: ...


def select_cases(cases: Iterable[Case], focus: str, skip: str) -> list[Case]:
    """Select cases by their names. Raises re.error."""
    is_selected = name_filter(focus, skip)
    return [case for case in cases if is_selected(case.name)]


def name_filter(focus: str, skip: str) -> Callable[[str], bool]:
    """Whether a name is selected. Raises re.error."""
    wanted, unwanted = re.compile(focus or ""), re.compile(skip) if skip else None
    return lambda name: bool(wanted.search(name)) and not (unwanted and unwanted.search(name))


async def run(
    env: CaseEnvironment,
    cases: Sequence[Case],
    settings: CaseSettings,
    on_result: Callable[[CaseResult], None],
    round: int = 1,
    *,
    on_case_start: Callable[[str], None] = lambda name: None,
) -> None:
    """Run the cases; `on_case_start` and `on_result` are called for each."""
    for case in cases:
        on_case_start(case.name)
        on_result(await run_case(env, case, settings, round))


async def run_case(env: CaseEnvironment, case: Case, settings: CaseSettings, round: int = 1) -> CaseResult:
    result = CaseResult(
        case.name, case.section, case.requirement, CaseVerdict.PASSED, round=round, needs=case.needs
    )
    if missing := env.capabilities.reason_to_skip(case.needs):
        result.verdict, result.reason = CaseVerdict.SKIPPED, f"not supported: {missing}"
        return result
    env.random = Random(f"{settings.seed}/{case.name}/{round}")
    env.case_timeout = settings.timeout
    first, marks = env.tap.mark(), env.log_positions()
    result.began, before = time.monotonic(), env.repeated
    await _try_case(env, case, settings, result, first)
    result.verdict_at = time.monotonic()
    await _clean_up(env, result, settings)
    result.seconds, result.repeated = time.monotonic() - result.began, env.repeated - before
    result.call_counts = count_calls(c for c in env.tap.since(first) if c.start <= result.verdict_at)
    if result.verdict is CaseVerdict.FAILED:
        result.calls = env.tap.since(first)
        result.logs = env.logs(marks)
    return redact_secrets(result, env.secrets.values())


def count_calls(calls: Iterable[CsiCall]) -> dict[str, CallCount]:
    found: dict[str, CallCount] = {}
    for call in calls:
        count = found.setdefault(call.method, CallCount())
        if call.code == Code.OK.name:
            count.ok += 1
        else:
            count.failed += 1
        if call.note:
            count.notes = {**count.notes, call.note: count.notes.get(call.note, 0) + 1}
    return found


async def _try_case(
    env: CaseEnvironment, case: Case, settings: CaseSettings, result: CaseResult, first: int
) -> None:
    try:
        async with asyncio.timeout(settings.timeout):
            await _run_unless_it_hangs_again(env, case.run(env), first)
    except NotSupported as reason:
        result.verdict, result.reason = CaseVerdict.SKIPPED, f"not supported: {reason}"
    except CaseFailure as error:
        _fail(result, str(error), error.section)
    except CallError as error:
        _fail(result, *_describe_failed_call(error, env.tap.since(first)))
    except TimeoutError:
        waited = await _describe_wait(env)
        calls = env.tap.since(first)
        _record_unanswered(env.tap, calls)
        _fail(result, _calls_without_answer(settings.timeout, calls, waited))
        await _recover(env)
    except _HangsAgain as error:
        _fail(result, str(error))
        await _recover(env)
    except DriverStartError as error:
        _fail(result, f"the driver does not restart: {error}", f"{SPEC}: Supervised Lifecycle Management")
        await _recover(env)
    except Exception as error:
        _fail(result, f"{type(error).__name__}: {error}")


class _HangsAgain(Exception):
    """A method did not answer in an earlier case, nor does it now."""


async def _run_unless_it_hangs_again(env: CaseEnvironment, work: Awaitable[Result], first: int) -> Result:
    """Run a case or its cleanup; end it early if a method that did not answer before does not again."""
    if not env.tap.unanswered:
        return await work
    async with background(work, _wait_for_hanging_call(env.tap, first)) as (running, hanging):
        await asyncio.wait({running, hanging}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise _HangsAgain(hanging.result())
        return cast("Result", await running)


def _record_unanswered(tap: CallInterceptor, calls: Sequence[CsiCall]) -> None:
    tap.unanswered |= {call.method for call in _open_calls(calls)}


async def _wait_for_hanging_call(tap: CallInterceptor, first: int) -> str:
    """Wait until a call of such a method is open for too long; an answer shows that the driver is well."""
    seen: dict[int, float] = {}  # when each open call was seen first
    while True:
        for call in tap.since(first):
            if call.end and call.code == "OK":
                tap.unanswered.discard(call.method)
            open_again = not call.end and call.method in tap.unanswered
            if open_again and clock.now() - seen.setdefault(call.number, clock.now()) >= HANG_LIMIT:
                return f"no answer to {call.method} for {HANG_LIMIT:g} s, as in an earlier case"
        await asyncio.sleep(HANG_INTERVAL)


async def _describe_wait(env: CaseEnvironment) -> str:
    try:
        async with asyncio.timeout(RECOVERY_TIMEOUT):
            return await env.describe_wait()
    except TimeoutError:
        return ""


async def _recover(env: CaseEnvironment) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(RECOVERY_TIMEOUT):
            await env.recover()


async def _clean_up(env: CaseEnvironment, result: CaseResult, settings: CaseSettings) -> None:
    first = env.tap.mark()
    try:
        async with asyncio.timeout(min(CLEANUP_TIMEOUT, max(settings.timeout, RECOVERY_TIMEOUT))):
            problems = await _run_unless_it_hangs_again(env, env.clean(), first)
    except (TimeoutError, DriverStartError, _HangsAgain) as error:
        problems = [f"cleanup does not finish: {error}" if str(error) else "cleanup does not finish"]
        if isinstance(error, TimeoutError):
            _record_unanswered(env.tap, env.tap.since(first))
        await _recover(env)
    if problems and result.verdict is not CaseVerdict.FAILED:
        result.verdict_at = time.monotonic()
        _fail(result, f"cleanup failed: {'; '.join(problems)}")


def _fail(result: CaseResult, reason: str, section: str = "") -> None:
    result.verdict, result.reason = CaseVerdict.FAILED, reason
    result.section = section or result.section


def _describe_failed_call(error: CallError, calls: Sequence[CsiCall]) -> tuple[str, str]:
    """Describe a call that should have returned OK, with its section of the specification."""
    for call in reversed(calls):
        if call.message == error.message and call.code == error.code.name:
            reason = f"{call.method}: {error.code.name} ({error.message}), expected OK"
            return reason, f"{SPEC}: {call.method}" if METHODS[call.method].service.startswith("csi.") else ""
    return str(error), ""


def _calls_without_answer(timeout: float, calls: Sequence[CsiCall], waited: str) -> str:
    open_ = _open_calls(calls)
    if waited:
        return f"not within {timeout:g} s: {waited}"
    if not open_:
        return f"not finished after {timeout:g} s"
    named = ", ".join(dict.fromkeys(f"{c.method}" for c in open_))
    return f"not finished after {timeout:g} s: no answer to {named}"


def _open_calls(calls: Sequence[CsiCall]) -> list[CsiCall]:
    """Calls without an answer; those that are in flight at the timeout are cancelled."""
    return [call for call in calls if not call.end or call.code == "CANCELLED"]


def redact_secrets(result: CaseResult, secrets: Iterable[str]) -> CaseResult:
    """Remove secrets that the driver repeats in an answer, an error or its log from the result."""
    redact_text = text_redactor(secrets)

    def redact_call(call: CsiCall) -> CsiCall:
        redacted = {field: redact_text(getattr(call, field)) for field in ("request", "response", "message")}
        return structs.replace(call, **redacted)

    result.reason = redact_text(result.reason)
    result.calls = [redact_call(call) for call in result.calls]
    result.logs = {name: redact_text(text) for name, text in result.logs.items()}
    return result


def secret_forms(value: str) -> tuple[str, str]:
    """A secret as it is, and in base64."""
    return value, b64encode(value.encode()).decode()


def text_redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    """A function that removes secrets from a text, also in base64."""
    values = [value for value in secrets if len(value) >= MIN_SECRET_LENGTH]
    known = sorted({form for value in values for form in secret_forms(value)}, key=len, reverse=True)

    def redact_text(text: str) -> str:
        for value in known:
            text = text.replace(value, STRIPPED)
        return text

    return redact_text
