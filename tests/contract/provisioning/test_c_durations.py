"""Rules with a long duration: in virtual time, and on a real socket with the duration set by its flag."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.provisioning.claims_env import claims_env
from tests.loops.inprocess import until
from tests.support import scripted
from tests.support.scripted import Fail
from tests.support.timing import GRAIN, is_virtual
from volplane.api.core import PersistentVolumeClaim
from volplane.csi.outcome import Code


@pytest.mark.both
async def test_the_pause_after_an_error_doubles_up_to_its_maximum() -> None:
    first, longest = (1.0, 300.0) if is_virtual() else (0.03, 0.1)
    driver = scripted.driver()
    driver.always("CreateVolume", Fail(Code.INTERNAL))
    flags: dict[str, Any] = (
        {} if is_virtual() else {"retry_interval_start": first, "retry_interval_max": longest}
    )
    async with claims_env(driver, **flags) as s:
        await s.storage_class()
        await s.claim()
        await asyncio.sleep(4 * longest)
        pauses = [min(first * 2**n, longest) for n in range(10)]
        await s.called("CreateVolume", len(pauses) + 1)
        for pause, least in zip(driver.pauses("CreateVolume"), pauses, strict=False):
            assert pause > least - GRAIN
        driver.always("CreateVolume", None)
        await asyncio.sleep(longest)
        await s.bound()


async def test_the_binder_looks_at_everything_each_period() -> None:
    """An event that is told in every round: its count grows."""
    async with claims_env(scripted.driver(), roles=("binder",), binder={"sync_period": 0.1}) as s:
        await s.claim(cls="")

        async def rounds() -> bool:
            reported = await s.events("FailedBinding")
            return bool(reported) and reported[0].count >= 3

        await until(rounds, 60)
        assert (await s.find(PersistentVolumeClaim, "data")).status.phase == "Pending"
