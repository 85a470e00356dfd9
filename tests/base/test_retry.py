"""Backoff schedules and the retry helper."""

from __future__ import annotations

import asyncio

import pytest

from volplane.base import clock
from volplane.base.backoff import Backoff, Failures, constant
from volplane.base.retry import retry


def test_delays_double_up_to_the_longest() -> None:
    assert [Backoff(1.0, 5.0).delay(n) for n in (1, 2, 3, 4, 10_000)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert [constant(3.0).delay(n) for n in (1, 2, 9)] == [3.0, 3.0, 3.0]


def test_a_success_starts_the_delays_over() -> None:
    failures = Failures(Backoff(1.0, 60.0))
    assert [failures.next_delay() for _ in range(3)] == [1.0, 2.0, 4.0]
    failures.reset()
    assert failures.next_delay() == 1.0


class Flaky:
    """Fails with the given errors, then answers; notes when it was called."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), []

    errors: list[Exception]
    calls: list[float]

    async def __call__(self) -> str:
        self.calls.append(clock.now())
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.mark.virtual
async def test_a_call_is_repeated_with_a_backoff_until_it_succeeds() -> None:
    flaky = Flaky(OSError("one"), OSError("two"), OSError("three"))
    reported: list[Exception] = []
    result = await retry(flaky, on=OSError, backoff=Backoff(1.0, 2.0), report=reported.append)
    assert (result, flaky.calls) == ("done", [0.0, 1.0, 3.0, 5.0])
    assert [str(error) for error in reported] == ["one", "two", "three"]


@pytest.mark.virtual
async def test_other_errors_pass_through() -> None:
    flaky = Flaky(OSError("again"), ValueError("never"))
    with pytest.raises(ValueError, match="never"):
        await retry(flaky, on=OSError, backoff=constant(1.0))
    assert flaky.calls == [0.0, 1.0]


@pytest.mark.virtual
async def test_the_report_can_give_up() -> None:
    def report(error: Exception) -> None:
        raise LookupError("enough") from error

    with pytest.raises(LookupError, match="enough"):
        await retry(Flaky(OSError("x")), on=OSError, backoff=constant(1.0), report=report)


@pytest.mark.virtual
async def test_an_attempt_that_takes_too_long_counts_as_a_failure() -> None:
    calls: list[float] = []

    async def slow() -> int:
        calls.append(clock.now())
        await asyncio.sleep(100 if len(calls) < 3 else 0)
        return len(calls)

    assert await retry(slow, on=TimeoutError, backoff=constant(1.0), timeout=5.0) == 3
    assert calls == [0.0, 6.0, 12.0]


@pytest.mark.virtual
async def test_a_retry_that_is_cancelled_ends_at_once() -> None:
    retrying = asyncio.create_task(retry(Flaky(OSError("x")), on=OSError, backoff=constant(3600.0)))
    await asyncio.sleep(1)
    retrying.cancel()
    await asyncio.wait({retrying})
    assert retrying.cancelled()
    assert clock.now() < 2
