"""Repeat a call until it succeeds, with a backoff between the attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from volplane.base.backoff import Backoff, Failures

T = TypeVar("T")
Errors = type[Exception] | tuple[type[Exception], ...]


async def retry(
    attempt: Callable[[], Awaitable[T]],
    *,
    on: Errors,
    backoff: Backoff,
    report: Callable[[Exception], object] | None = None,
    timeout: float | None = None,
) -> T:
    """The result of the first `attempt()` that raises none of `on`. All other errors pass through.

    `report` gets each error that leads to another attempt: it logs the error, or raises to give up.
    `timeout` limits each attempt; one that takes longer counts as TimeoutError.
    """
    failures = Failures(backoff)
    while True:
        try:
            if timeout is None:
                return await attempt()
            async with asyncio.timeout(timeout):
                return await attempt()
        except on as error:
            if report is not None:
                report(error)
        await asyncio.sleep(failures.next_delay())
