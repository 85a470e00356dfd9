"""The cache with a scripted transport: its notifications and their order, with lost streams and compacted
history.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

from volplane.api.core import ConfigMap
from volplane.api.errors import Expired, Unavailable
from volplane.api.meta import ObjectMeta
from volplane.client.cache import Cache, Caches
from volplane.client.transport import ChangeType, ListPage, ObjectChange

pytestmark = pytest.mark.virtual


def config(name: str, revision: int, *, uid: str = "", **data: str) -> ConfigMap:
    metadata = ObjectMeta(name=name, namespace="ns", uid=uid or f"uid-{name}", resource_version=str(revision))
    return ConfigMap(metadata=metadata, data=data)


class Script:
    """A transport whose list is a dictionary and whose streams are written by the test."""

    def __init__(self, *objects: ConfigMap, revision: int = 10) -> None:
        self.objects = list(objects)
        self.revision = revision
        self.lists = 0
        self.watched: list[int] = []
        self.failures: list[Exception] = []
        self.stream: asyncio.Queue[Any] = asyncio.Queue()

    async def list(self, type: Any, namespace: str = "", **_: Any) -> ListPage[Any]:
        self.lists += 1
        if self.failures:
            raise self.failures.pop(0)
        return ListPage(tuple(self.objects), self.revision)

    @asynccontextmanager
    async def watch(
        self, type: Any, namespace: str = "", *, revision: int = 0, **_: Any
    ) -> AsyncIterator[Any]:
        self.watched.append(revision)
        yield self._batches()

    async def _batches(self) -> AsyncIterator[Any]:
        while True:
            item = await self.stream.get()
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item

    def send(self, *changes: ObjectChange[Any]) -> None:
        self.stream.put_nowait(list(changes))


def put(obj: ConfigMap) -> ObjectChange[Any]:
    return ObjectChange(ChangeType.MODIFIED, obj, obj.revision)


def deletion_of(obj: ConfigMap, revision: int) -> ObjectChange[Any]:
    last = structs.replace(obj, metadata=structs.replace(obj.metadata, resource_version=str(revision)))
    return ObjectChange(ChangeType.DELETED, last, revision)


def names(objects: Iterable[ConfigMap]) -> list[str]:
    return sorted(o.name for o in objects)


class RecordedChanges:
    def __init__(self) -> None:
        self.news: list[tuple[str, str, int]] = []

    def __call__(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        what = "new" if old is None else "gone" if new is None else "changed"
        obj = new or old
        assert obj is not None
        self.news.append((what, obj.name, obj.revision))


async def settle() -> None:
    await asyncio.sleep(10)


async def test_it_lists_then_watches_from_the_lists_revision() -> None:
    script = Script(config("a", 3), config("b", 7))
    async with Caches(script) as caches:  # type: ignore[arg-type]
        cache = caches.get(ConfigMap)
        await cache.wait_synced()
        await settle()
        assert names(cache.all()) == ["a", "b"]
        assert names(cache.namespace("ns")) == ["a", "b"]
        assert cache.get("a", "ns") is cache.at("ns/a")
        assert cache.get("a", "elsewhere") is None
        assert (cache.revision, script.watched) == (10, [10])


async def test_a_subscriber_hears_what_is_there_and_then_every_change_in_order() -> None:
    a, b = config("a", 3), config("b", 12)
    script = Script(a)
    async with Caches(script) as caches:  # type: ignore[arg-type]
        cache = caches.get(ConfigMap)
        await cache.wait_synced()
        heard = RecordedChanges()
        end = cache.subscribe(heard)
        script.send(put(b), put(config("a", 13)))
        script.send(deletion_of(b, 14))
        await settle()
        assert heard.news == [("new", "a", 3), ("new", "b", 12), ("changed", "a", 13), ("gone", "b", 14)]
        end()
        script.send(put(config("c", 15)))
        await settle()
        assert len(heard.news) == 4


async def test_an_index_is_right_before_subscribers_hear() -> None:
    def colours(obj: ConfigMap) -> list[str]:
        return [obj.data["colour"]] if "colour" in obj.data else []

    script = Script(config("a", 3, colour="red"))
    async with Caches(script) as caches:  # type: ignore[arg-type]
        cache = caches.get(ConfigMap)
        await cache.wait_synced()
        index = cache.index("colour", colours)
        seen: list[list[str]] = []
        cache.subscribe(lambda old, new: seen.append(names(index["blue"])))
        script.send(put(config("a", 11, colour="blue")))
        script.send(
            deletion_of(config("a", 11), 12)
        )  # its last state has lost the colour; the index finds it anyway
        await settle()
        assert seen == [[], ["a"], []]
        assert "red" not in index
        assert "blue" not in index
        assert cache.index("colour", colours) is index


async def test_lost_history_means_a_new_list_whose_differences_are_told() -> None:
    script = Script(config("stays", 1), config("goes", 2), config("changes", 3), config("reborn", 4))
    async with Caches(script) as caches:  # type: ignore[arg-type]
        cache = caches.get(ConfigMap)
        await cache.wait_synced()
        heard = RecordedChanges()
        cache.subscribe(heard)
        heard.news.clear()
        script.objects = [
            config("stays", 1),
            config("changes", 30),
            config("comes", 31),
            config("reborn", 32, uid="another"),
        ]
        script.revision = 40
        script.stream.put_nowait(Expired("too old resource version: 10 (20)"))
        await settle()
        assert heard.news == [
            ("gone", "goes", 2),
            ("changed", "changes", 30),
            ("new", "comes", 31),
            ("gone", "reborn", 4),
            ("new", "reborn", 32),
        ]
        assert script.watched == [10, 40]


async def test_a_stream_that_ends_or_breaks_goes_on_without_a_list() -> None:
    script = Script(config("a", 3))
    async with Caches(script) as caches:  # type: ignore[arg-type]
        cache = caches.get(ConfigMap)
        await cache.wait_synced()
        script.send(put(config("a", 11)))
        script.stream.put_nowait(None)
        script.stream.put_nowait(Unavailable("connection lost"))
        script.send(put(config("a", 12)))
        await settle()
        assert script.watched == [10, 11, 11]
        assert script.lists == 1
        assert cache.revision == 12


async def test_a_server_that_is_away_is_asked_again_and_again() -> None:
    script = Script(config("a", 3))
    script.failures = [Unavailable("connection refused")] * 5
    async with Caches(script) as caches:  # type: ignore[arg-type]
        cache = caches.get(ConfigMap)
        await cache.wait_synced()
        assert script.lists == 6


async def test_wait_for_returns_when_the_revision_is_there_bookmarks_included() -> None:
    script = Script(config("a", 3))
    async with Caches(script) as caches:  # type: ignore[arg-type]
        cache = caches.get(ConfigMap)
        await cache.wait_synced()
        await cache.wait_for(10)
        early, late = asyncio.create_task(cache.wait_for(11)), asyncio.create_task(cache.wait_for(20))
        script.send(put(config("a", 12)))
        await settle()
        assert (early.done(), late.done()) == (True, False)
        script.send(ObjectChange(ChangeType.BOOKMARK, None, 25))
        await settle()
        assert late.done()
        assert cache.revision == 25


async def test_caches_are_shared_by_kind_and_selection() -> None:
    script = Script()
    async with Caches(script) as caches:  # type: ignore[arg-type]
        assert caches.get(ConfigMap) is caches.get(ConfigMap)
        assert caches.get(ConfigMap, labels="a=b") is not caches.get(ConfigMap)


async def test_a_subscriber_that_fails_does_not_silence_the_others() -> None:
    def broken(old: object, new: object) -> None:
        raise ValueError("mine alone")

    script = Script()
    async with Caches(script) as caches:  # type: ignore[arg-type]
        cache: Cache[ConfigMap] = caches.get(ConfigMap)
        await cache.wait_synced()
        heard = RecordedChanges()
        cache.subscribe(broken)
        cache.subscribe(heard)
        script.send(put(config("a", 11)))
        await settle()
        assert heard.news == [("new", "a", 11)]
