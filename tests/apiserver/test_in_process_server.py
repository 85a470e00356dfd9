"""The in-process server: its transport, timeouts, Event expiry and compaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from volplane.api.core import (
    ConfigMap,
    Event,
    EventSeries,
    Namespace,
    ObjectReference,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    VolumeResourceRequirements,
)
from volplane.api.errors import Conflict, Expired, Forbidden, Invalid, NotFound, Timeout
from volplane.api.meta import DeleteOptions, ObjectMeta, Preconditions
from volplane.apiserver.auth.well_known_users import ADMIN
from volplane.apiserver.event_ttl_and_compaction import HISTORY_SECONDS
from volplane.apiserver.in_process_server import InProcessServer
from volplane.apiserver.in_process_transport import InProcessTransport
from volplane.apiserver.strategy import ApiCall, RequestUser
from volplane.apiserver.verbs.collection import delete_collection
from volplane.apiserver.verbs.list import ListOptions
from volplane.base import clock
from volplane.client.transport import ObjectChange, PatchStyle
from volplane.store.memory import MemoryStore


@asynccontextmanager
async def run_server() -> AsyncIterator[tuple[InProcessServer, InProcessTransport, MemoryStore]]:
    store = MemoryStore()
    core = await InProcessServer(store).start()
    try:
        yield core, core.in_process_transport(), store
    finally:
        await core.close()
        await store.close()


def config_map(name: str = "a", **labels: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default", labels=labels))


async def first(batches: AsyncIterator[list[ObjectChange[ConfigMap]]]) -> ObjectChange[ConfigMap]:
    return (await anext(batches))[0]


async def test_the_default_namespaces_exist() -> None:
    async with run_server() as (_, local, _store):
        page = await local.list(Namespace)
        names = [n.name for n in page.items]
        assert names == ["default", "kube-node-lease", "kube-public", "kube-system"]
        assert page.items[0].status.phase == "Active"


async def test_the_verbs_take_and_return_structs() -> None:
    async with run_server() as (_, local, store):
        made = await local.create(config_map())
        assert made.revision == store.revision
        assert await local.get(ConfigMap, "a", "default") == made
        patched = await local.patch(ConfigMap, "a", "default", {"data": {"x": "1"}}, PatchStyle.MERGE)
        assert patched.data == {"x": "1"}
        replaced = await local.update(structs.replace(patched, data={"x": "2"}))
        with pytest.raises(Conflict):
            await local.update(structs.replace(patched, data={"x": "3"}))
        assert await local.delete(ConfigMap, "a", "default") is None
        assert replaced.data == {"x": "2"}
        with pytest.raises(NotFound, match='configmaps "a" not found'):
            await local.get(ConfigMap, "a", "default")


async def test_watchers_in_process_share_one_object() -> None:
    async with run_server() as (_, local, store):
        start = store.revision
        async with (
            local.watch(ConfigMap, "default", revision=start) as one,
            local.watch(ConfigMap, revision=start) as two,
        ):
            made = await local.create(config_map())
            left, right = await first(one), await first(two)  # type: ignore[arg-type]
            assert left.object is right.object
            assert left.object == made
            await local.delete(ConfigMap, "a", "default")
            gone = await first(one)  # type: ignore[arg-type]
            assert (gone.type, gone.revision) == ("DELETED", store.revision)
            assert gone.object is not None
            assert gone.object.revision == store.revision


async def test_a_watch_with_selector_sees_objects_enter_and_leave() -> None:
    async with run_server() as (_, local, _store):
        await local.create(config_map("other"))
        async with local.watch(ConfigMap, labels="app=x") as changes:
            await local.create(config_map("a", app="x"))
            assert (await first(changes)).type == "ADDED"  # type: ignore[arg-type]
            await local.patch(
                ConfigMap, "a", "default", {"metadata": {"labels": {"app": None}}}, PatchStyle.MERGE
            )
            left = await first(changes)  # type: ignore[arg-type]
            assert left.type == "DELETED"
            assert left.object is not None
            assert left.object.metadata.labels == {"app": "x"}


async def test_a_watch_of_one_name_sees_only_that_name() -> None:
    async with run_server() as (_, local, _store):
        async with local.watch(ConfigMap, "default", fields="metadata.name=a") as changes:
            await local.create(config_map("a-longer"))
            await local.create(config_map("a"))
            change = await first(changes)  # type: ignore[arg-type]
            assert change.object is not None
            assert change.object.name == "a"
        page = await local.list(ConfigMap, "default", fields="metadata.name=a")
        assert [m.name for m in page.items] == ["a"]


async def test_the_same_rules_hold_in_process() -> None:
    async with run_server() as (core, local, _store):
        made = await local.create(config_map())
        with pytest.raises(Invalid):
            await local.create(config_map("Not_A_Name"))
        guard = DeleteOptions(preconditions=Preconditions(uid="other"))
        with pytest.raises(Conflict, match="in the precondition"):
            await local.delete(ConfigMap, "a", "default", guard)
        nobody = core.in_process_transport(RequestUser("nobody"))
        with pytest.raises(Forbidden, match='User "nobody" cannot get resource "configmaps"'):
            await nobody.get(ConfigMap, "a", "default")
        assert (await local.get(ConfigMap, "a", "default")).uid == made.uid


@pytest.mark.virtual
async def test_an_idle_watch_gets_a_bookmark_at_once_every_minute_and_before_its_end() -> None:
    async with run_server() as (_, local, store):
        start = store.revision
        async with local.watch(ConfigMap, revision=start, seconds=90) as changes:
            began = clock.now()
            received = [
                (change.type, change.revision, round(clock.now() - began)) async for (change,) in changes
            ]
        assert received == [("BOOKMARK", start, seconds) for seconds in (0, 60, 88, 90)]


@pytest.mark.virtual
async def test_a_read_waits_three_seconds_for_a_future_revision() -> None:
    async with run_server() as (_, local, store):
        began = clock.now()
        ahead = store.revision + 1
        with pytest.raises(Timeout, match=f"Too large resource version: {ahead}, current: {ahead - 1}"):
            await local.list(ConfigMap, revision=str(ahead))
        assert clock.now() - began == pytest.approx(3.0)
        waiting = asyncio.create_task(local.list(ConfigMap, revision=str(ahead)))
        await asyncio.sleep(1)
        await local.create(config_map())
        assert (await waiting).revision == ahead


@pytest.mark.virtual
async def test_events_expire_after_an_hour() -> None:
    async with run_server() as (_, local, _store):
        about = ObjectReference(kind="ConfigMap", name="a", namespace="default")
        event = Event(
            metadata=ObjectMeta(name="a.1", namespace="default"),
            involved_object=about,
            last_timestamp=clock.stamp(),
        )
        await local.create(event)
        await asyncio.sleep(3500)
        assert len((await local.list(Event)).items) == 1
        async with local.watch(Event) as changes:
            await first(changes)  # type: ignore[arg-type]
            await asyncio.sleep(200)
            received = [change.type for change in await anext(changes)]
            assert "DELETED" in received or "BOOKMARK" in received
        assert (await local.list(Event)).items == []


@pytest.mark.virtual
async def test_an_event_that_is_repeated_stays() -> None:
    async with run_server() as (_, local, _store):
        about = ObjectReference(kind="ConfigMap", name="a", namespace="default")
        meta = ObjectMeta(name="a.1", namespace="default")
        made = await local.create(Event(metadata=meta, involved_object=about, last_timestamp=clock.stamp()))
        await asyncio.sleep(3000)
        again = EventSeries(count=2, last_observed_time=clock.microstamp())
        await local.update(structs.replace(made, series=again))
        await asyncio.sleep(3000)
        assert len((await local.list(Event)).items) == 1
        await asyncio.sleep(1000)
        assert (await local.list(Event)).items == []


@pytest.mark.virtual
async def test_history_is_compacted_after_five_minutes_and_a_thousand_revisions() -> None:
    async with run_server() as (_, local, store):
        for at in range(1200):
            await local.create(config_map(f"m{at}"))
        before = store.revision
        await asyncio.sleep(HISTORY_SECONDS + 130)
        assert store.floor == before - 1000
        with pytest.raises(Expired, match="too old resource version: 1 "):
            async with local.watch(ConfigMap, revision=1) as changes:
                await anext(changes)


async def test_quantities_are_stored_in_canonical_form() -> None:
    async with run_server() as (_, local, _store):
        spec = PersistentVolumeClaimSpec(
            access_modes=("ReadWriteOnce",),
            resources=VolumeResourceRequirements(requests={"storage": "1024Mi"}),
        )
        meta = ObjectMeta(name="c", namespace="default")
        made = await local.create(PersistentVolumeClaim(metadata=meta, spec=spec))
        assert made.spec.resources.requests == {"storage": "1Gi"}


async def test_a_large_collection_is_deleted_completely() -> None:
    async with run_server() as (core, local, _store):
        for at in range(150):
            await local.create(config_map(f"m{at}"))
        entry = core.backend.registry.of(ConfigMap)
        call = ApiCall("deletecollection", entry.kind, ADMIN, core.backend.reader, clock.wall(), "default")
        gone = await delete_collection(core.backend, entry, call, ListOptions(), DeleteOptions())
        assert len(gone.records) == 150
        assert (await local.list(ConfigMap, "default")).items == []
