"""What a case that was not done in time says of the cluster."""

from __future__ import annotations

import asyncio

import pytest

from tests.controllers.objects import claim
from tests.loops.inprocess import world
from tests.testing.test_runner import Idle
from volplane.api.core import PersistentVolumeClaim
from volplane.api.meta import Resource
from volplane.testing import failure_reason, runner
from volplane.testing.case import Case
from volplane.testing.failure_reason import find_reason
from volplane.testing.runner import CaseResult, CaseSettings


def made(kind: type[Resource]) -> set[str]:
    return {"data", "gone"} if kind is PersistentVolumeClaim else set()


async def test_the_reason_is_that_of_the_first_thing_that_waits() -> None:
    async with world() as api:
        assert await find_reason(api.client, made) == ""
        await api.client.create(claim("data", cls="missing"))
        said = await find_reason(api.client, made)
        assert said.startswith("pvc/default/data waits: ")
        assert 'storageclass.storage.k8s.io "missing" not found' in said


async def test_a_reason_that_cannot_be_found_out_costs_nobody_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(*_: object) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(failure_reason, "explain", broken)
    async with world() as api:
        await api.client.create(claim("data", cls="missing"))
        assert await find_reason(api.client, made) == ""


async def test_a_case_that_is_not_done_in_time_says_what_the_world_waits_for() -> None:
    async def wait(world: Idle) -> None:
        await asyncio.Event().wait()

    idle, results = Idle(), list[CaseResult]()
    idle.waiting = "pod a runs (pod/default/a waits: nobody attaches)"
    case = Case("ours/waits", "Kubernetes", "Ends.", wait)
    await runner.run(idle, [case], CaseSettings(seed=1, timeout=0.05), results.append)
    assert results[0].reason == "not within 0.05 s: pod a runs (pod/default/a waits: nobody attaches)"
