"""The volume manager on a real node: what the plan alone does not show."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.loops.inprocess import until
from tests.node.node_env import NodeEnv, node_env

pytestmark = pytest.mark.root


async def with_two_pods(here: NodeEnv) -> None:
    await here.start()
    await here.start_driver()
    await here.wait_until_registered()
    await here.volume()
    for name in ("a", "b"):
        await here.pod(name, claim="data")
        await here.wait_until_ready(name)


async def test_an_unmount_that_takes_long_does_not_hold_up_the_next_pod() -> None:
    async with node_env() as here:
        await with_two_pods(here)
        both, first = asyncio.Barrier(2), asyncio.Event()

        async def meet(request: Any) -> None:
            first.set()
            await both.wait()

        here.disks.hooks["unpublish"] = meet
        await here.delete("a")
        await first.wait()
        await here.delete("b")
        for name in ("a", "b"):
            await here.wait_for_phase("gone", name)
        assert here.disks.count_calls()["unpublish"] == 2


async def test_pods_that_leave_together_are_unmounted_side_by_side_and_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with node_env() as here:
        await with_two_pods(here)
        both = asyncio.Barrier(2)

        async def meet(request: Any) -> None:
            await both.wait()

        here.disks.hooks["unpublish"] = meet
        for name in ("a", "b"):
            await here.delete(name)
        for name in ("a", "b"):
            await here.wait_for_phase("gone", name)

        async def out_of_use() -> bool:
            return not await here.in_use()

        await until(out_of_use)
        assert here.disks.count_calls() == {"stage": 1, "publish": 2, "unpublish": 2, "unstage": 1}
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
