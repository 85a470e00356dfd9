"""Run cases one after the other, and collect what is needed to understand failures.

A case gets random numbers from the seed and its name, so that it behaves the same alone as in a full run. Its
result has its calls and the end of the driver's logs. A driver that does not respond is killed and restarted
before the next case.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from random import Random
from typing import Protocol

from msgspec import Struct, structs

from volplane.csi.call_interceptor import CallInterceptor, CsiCall
from volplane.csi.outcome import CallError
from volplane.csi.redact import STRIPPED
from volplane.csi.services import METHODS
from volplane.testing.capabilities import DriverCapabilities
from volplane.testing.case import SPEC, Case, CaseFailure, NotSupported
from volplane.testing.driver_process import DriverStartError

CLEANING = 120.0  # seconds
SHORTEST = 4  # shortest secret that is redacted; shorter strings occur everywhere


class CaseVerdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


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
    repeated: int
    secrets: dict[str, str]

    async def clean(self) -> list[str]: ...

    async def recover(self) -> None: ...

    async def describe_wait(self) -> str: ...

    def log_positions(self) -> dict[str, int]: ...

    def logs(self, since: dict[str, int]) -> dict[str, str]: ...


def select_cases(cases: Iterable[Case], focus: str, skip: str) -> list[Case]:
    """Select cases by their names. Raises re.error."""
    wanted, unwanted = re.compile(focus or ""), re.compile(skip) if skip else None
    return [c for c in cases if wanted.search(c.name) and not (unwanted and unwanted.search(c.name))]


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
    result = CaseResult(case.name, case.section, case.requirement, CaseVerdict.PASSED, round=round)
    if missing := env.capabilities.reason_to_skip(case.needs):
        result.verdict, result.reason = CaseVerdict.SKIPPED, f"not supported: {missing}"
        return result
    env.random = Random(f"{settings.seed}/{case.name}/{round}")
    first, marks = env.tap.mark(), env.log_positions()
    result.began, before = time.monotonic(), env.repeated
    await _try_case(env, case, settings, result, first)
    result.verdict_at = time.monotonic()
    await _clean_up(env, result)
    result.seconds, result.repeated = time.monotonic() - result.began, env.repeated - before
    if result.verdict is CaseVerdict.FAILED:
        result.calls = env.tap.since(first)
        result.logs = env.logs(marks)
    return redact_secrets(result, env.secrets.values())


async def _try_case(
    env: CaseEnvironment, case: Case, settings: CaseSettings, result: CaseResult, first: int
) -> None:
    try:
        async with asyncio.timeout(settings.timeout):
            await case.run(env)
    except NotSupported as reason:
        result.verdict, result.reason = CaseVerdict.SKIPPED, f"not supported: {reason}"
    except CaseFailure as error:
        _fail(result, str(error), error.section)
    except CallError as error:
        _fail(result, *_describe_failed_call(error, env.tap.since(first)))
    except TimeoutError:
        waited = await env.describe_wait()
        _fail(result, _calls_without_answer(settings.timeout, env.tap.since(first), waited))
        await env.recover()
    except DriverStartError as error:
        _fail(result, f"the driver does not restart: {error}", f"{SPEC}: Supervised Lifecycle Management")
        await env.recover()
    except Exception as error:
        _fail(result, f"{type(error).__name__}: {error}")


async def _clean_up(env: CaseEnvironment, result: CaseResult) -> None:
    try:
        async with asyncio.timeout(CLEANING):
            problems = await env.clean()
    except (TimeoutError, DriverStartError) as error:
        problems = [f"cleanup does not finish {error}".rstrip()]
        await env.recover()
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
    # Calls that are in flight at the timeout are cancelled.
    open_ = [c for c in calls if not c.end or c.code == "CANCELLED"]
    if waited:
        return f"not within {timeout:g} s: {waited}"
    if not open_:
        return f"not finished after {timeout:g} s"
    named = ", ".join(dict.fromkeys(f"{c.method}" for c in open_))
    return f"not finished after {timeout:g} s: no answer to {named}"


def redact_secrets(result: CaseResult, secrets: Iterable[str]) -> CaseResult:
    """Remove secrets that the driver repeats in an answer, an error or its log from the result."""
    known = sorted((value for value in secrets if len(value) >= SHORTEST), key=len, reverse=True)

    def redact_text(text: str) -> str:
        for value in known:
            text = text.replace(value, STRIPPED)
        return text

    def redact_call(call: CsiCall) -> CsiCall:
        words = {field: redact_text(getattr(call, field)) for field in ("request", "response", "message")}
        return structs.replace(call, **words)

    if known:
        result.reason = redact_text(result.reason)
        result.calls = [redact_call(call) for call in result.calls]
        result.logs = {name: redact_text(text) for name, text in result.logs.items()}
    return result
