"""Leader election: one at a time, handed over at once when released, after a lease period when not."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from tests.loops.inprocess import World, running, world
from volplane.api.coordination import Lease, LeaseSpec
from volplane.api.errors import Unavailable
from volplane.api.meta import ObjectMeta
from volplane.base import clock
from volplane.client.client import Client
from volplane.loops.leader import LeaseLost, run_as_leader

pytestmark = pytest.mark.virtual


class Candidate:
    def __init__(self, w: World, name: str) -> None:
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


async def lease(w: World) -> LeaseSpec:
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
            assert 14 <= one.leads[0] - began <= 22
            assert (await lease(w)).lease_transitions == 5


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


async def test_who_cannot_renew_stops_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        one = Candidate(w, "one")

        async def away(*_: object, **__: object) -> Lease:
            raise Unavailable("the API server cannot be reached")

        task = asyncio.create_task(one.run())
        await asyncio.sleep(7)
        renewed = clock.now()
        monkeypatch.setattr(one.client, "update", away)
        with pytest.raises(LeaseLost):
            await task
        assert not one.leading
        assert clock.now() - renewed <= 15


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
