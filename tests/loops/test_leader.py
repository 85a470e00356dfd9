"""Leader election: one at a time, handed over at once when released, after a lease period when not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from msgspec import structs

from tests.loops.inprocess import InProcessEnv, running, world
from volplane.api.coordination import Lease, LeaseSpec
from volplane.api.errors import Forbidden, Unavailable
from volplane.api.meta import ObjectMeta
from volplane.base import clock
from volplane.client.client import Client
from volplane.client.transport import ObjectChange
from volplane.loops.leader import JITTER, LeaseLost, run_as_leader

pytestmark = pytest.mark.virtual

PERIOD, RETRY = 15.0, 5.0  # seconds: how long a lease is good, and how often it is renewed
TINY = 1e-6


class Candidate:
    def __init__(self, w: InProcessEnv, name: str) -> None:
        self.name = name
        self.client: Client = w.role(name)
        self.leads: list[float] = []
        self.leading = False

    async def work(self) -> None:
        self.leads.append(clock.now())
        self.leading = True
        try:
            await asyncio.Event().wait()
        finally:
            self.leading = False

    async def run(self, *, release: bool = True) -> None:
        await run_as_leader(self.client, "the-lease", "default", self.name, self.work, release=release)


async def lease(w: InProcessEnv) -> LeaseSpec:
    return (await w.client.get(Lease, "the-lease", "default")).spec


async def test_only_one_of_two_leads_and_renews() -> None:
    async with world() as w:
        one, two = Candidate(w, "one"), Candidate(w, "two")
        async with running(one.run(), two.run()):
            await asyncio.sleep(100)
            assert [one.leading, two.leading] == [True, False]
            spec = await lease(w)
            assert (spec.holder_identity, spec.lease_duration_seconds) == ("one", 15)
            assert spec.lease_transitions == 0
            assert spec.renew_time is not None
            assert spec.acquire_time is not None
            age = clock.wall() - clock.parse(spec.renew_time)
            assert age.total_seconds() <= 5
            assert clock.parse(spec.acquire_time) < clock.parse(spec.renew_time)


async def test_a_released_lease_is_taken_at_once() -> None:
    async with world() as w:
        one, two = Candidate(w, "one"), Candidate(w, "two")
        async with running(two_after(one, two)):
            async with running(one.run()):
                await asyncio.sleep(50)
            released = clock.now()
            await asyncio.sleep(20)
            assert two.leads[0] - released < 1
            assert (await lease(w)).lease_transitions == 1


async def two_after(one: Candidate, two: Candidate) -> None:
    await asyncio.sleep(1)
    await two.run()


async def test_a_dead_holders_lease_is_taken_when_it_runs_out_by_our_own_clock() -> None:
    async with world() as w:
        # Its stamps are an hour ahead: they must not matter.
        ahead = "2027-01-01T01:00:00.000000Z"
        spec = LeaseSpec(
            holder_identity="dead",
            lease_duration_seconds=15,
            acquire_time=ahead,
            renew_time=ahead,
            lease_transitions=4,
        )
        await w.client.create(Lease(metadata=ObjectMeta(name="the-lease", namespace="default"), spec=spec))
        one = Candidate(w, "one")
        began = clock.now()
        async with running(one.run()):
            await asyncio.sleep(60)
            assert one.leads[0] - began == pytest.approx(15)
            assert (await lease(w)).lease_transitions == 5


@pytest.mark.parametrize("phase", [0.0, 0.001, 1.3, 2.5, 4.999, 5.0])
async def test_the_next_one_leads_a_lease_period_after_the_holders_end_at_the_latest(phase: float) -> None:
    """Whenever in its cycle of renewals the holder dies; and never before its lease has run out."""
    async with world() as w:
        one, two = Candidate(w, "one"), Candidate(w, "two")
        async with running(two_after(one, two)):
            async with running(one.run(release=False)):  # who releases nothing has died, for all others
                await asyncio.sleep(50 + phase)
            died = clock.now()
            last = (await lease(w)).renew_time
            await asyncio.sleep(30)
        assert last is not None
        renewed = died - (clock.parse(clock.microstamp()) - clock.parse(last)).total_seconds() + 30
        assert two.leads[0] == pytest.approx(renewed + PERIOD)
        assert two.leads[0] - died <= PERIOD + TINY


async def test_a_renewal_is_known_when_it_is_written_and_nobody_asks_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        one, two = Candidate(w, "one"), Candidate(w, "two")
        async with running(two_after(one, two), one.run()):
            await asyncio.sleep(10)
            asked = looks(two, monkeypatch)
            await asyncio.sleep(600)
            assert asked == []
            assert [one.leading, two.leading] == [True, False]


def looks(candidate: Candidate, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the candidate reads the lease."""
    asked: list[float] = []
    find = candidate.client.find

    async def count_looks(*arguments: Any, **more: Any) -> Any:
        asked.append(clock.now())
        return await find(*arguments, **more)

    monkeypatch.setattr(candidate.client, "find", count_looks)
    return asked


async def test_who_may_not_watch_looks_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        one, two = Candidate(w, "one"), Candidate(w, "two")

        async def forbidden(*_: Any, **__: Any) -> AsyncIterator[ObjectChange[Lease]]:
            raise Forbidden("no watching here")
            yield

        monkeypatch.setattr(two.client, "watch", forbidden)
        async with running(two_after(one, two)):
            async with running(one.run(release=False)):
                await asyncio.sleep(50)
            died = clock.now()
            asked = looks(two, monkeypatch)
            await asyncio.sleep(30)
            assert PERIOD - RETRY <= two.leads[0] - died <= PERIOD + RETRY * JITTER
            assert len(asked) < 10


async def test_a_stream_that_ends_is_followed_by_the_next_without_a_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        one, two = Candidate(w, "one"), Candidate(w, "two")
        watch, streams = two.client.watch, 0

        async def short(*arguments: Any, **more: Any) -> AsyncIterator[ObjectChange[Lease]]:
            nonlocal streams
            streams += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(7):  # as servers end them, only sooner
                    async for change in watch(*arguments, **more):
                        yield change

        monkeypatch.setattr(two.client, "watch", short)
        async with running(two_after(one, two)):
            async with running(one.run(release=False)):
                await asyncio.sleep(70)
            died = clock.now()
            await asyncio.sleep(30)
            assert two.leads[0] - died <= PERIOD + TINY
            assert streams > 9


async def test_the_same_identity_takes_its_own_lease_back_without_waiting() -> None:
    async with world() as w:
        one = Candidate(w, "one")
        async with running(one.run(release=False)):
            await asyncio.sleep(1)
        began = clock.now()
        async with running(one.run()):
            await asyncio.sleep(1)
            assert one.leads[-1] - began < 0.1
            assert (await lease(w)).lease_transitions == 0


async def test_leaving_writes_an_empty_holder() -> None:
    async with world() as w:
        async with running(Candidate(w, "one").run()):
            await asyncio.sleep(1)
        spec = await lease(w)
        assert (spec.holder_identity, spec.lease_duration_seconds) == ("", 1)


async def test_a_renewal_cut_short_by_the_end_does_not_keep_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        one, two = Candidate(w, "one"), Candidate(w, "two")
        update = one.client.update
        under_way = asyncio.Event()

        async def slow(obj: Lease) -> Lease:
            """It is written, and the answer takes its time."""
            made = await update(obj)
            if not under_way.is_set():
                under_way.set()
                await asyncio.sleep(3)
            return made

        async with running(two_after(one, two)):
            async with running(one.run()):
                await asyncio.sleep(2)
                monkeypatch.setattr(one.client, "update", slow)
                await under_way.wait()
            ended = clock.now()
            await asyncio.sleep(20)
            assert two.leads[0] - ended <= TINY


@pytest.mark.parametrize("seconds", [0.0, 2.0, 4.9])
async def test_who_cannot_renew_stops_before_anybody_else_begins(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one whose last renewal took long to be answered: others count from when it was written."""
    async with world() as w:
        one, two = Candidate(w, "one"), Candidate(w, "two")
        update = one.client.update
        asked: list[Any] = []

        async def away(obj: Lease) -> Lease:
            if asked:
                raise Unavailable("the API server cannot be reached")
            asked.append(clock.now())
            made = await update(obj)
            await asyncio.sleep(seconds)
            return made

        async with running(two_after(one, two)):
            task = asyncio.create_task(one.run())
            await asyncio.sleep(2)
            monkeypatch.setattr(one.client, "update", away)
            with pytest.raises(LeaseLost):
                await task
            assert not one.leading
            stopped = clock.now()
            await asyncio.sleep(30)
            assert two.leads[0] == pytest.approx(asked[0] + PERIOD)
            assert two.leads[0] - stopped >= 1


async def test_who_is_overtaken_stops() -> None:
    async with world() as w:
        one = Candidate(w, "one")
        task = asyncio.create_task(one.run())
        await asyncio.sleep(1)
        held = await w.client.get(Lease, "the-lease", "default")
        stolen = structs.replace(held.spec, holder_identity="thief", renew_time=clock.microstamp())
        await w.client.update(structs.replace(held, spec=stolen))
        with pytest.raises(LeaseLost):
            await task
        assert (await lease(w)).holder_identity == "thief"


async def test_a_standby_logs_who_leads_once_for_each_leader(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "volplane.loops.leader")
    async with world() as w:
        one, two = Candidate(w, "one"), Candidate(w, "two")
        async with running(two.run()):
            await asyncio.sleep(1)
            async with running(one.run()):
                await asyncio.sleep(100)
        assert [r.getMessage() for r in caplog.records if "leads" in r.getMessage()] == [
            "lease default/the-lease: two leads"
        ]
