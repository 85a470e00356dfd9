"""Objects written by this process are never decoded again, even if watchers see the commit first."""

from __future__ import annotations

import asyncio
import weakref
from pathlib import Path
from typing import Any

import pytest

from tests.loops.inprocess import world
from volplane.api.core import ConfigMap
from volplane.api.errors import AlreadyExists
from volplane.api.meta import ObjectMeta
from volplane.apiserver import openapi
from volplane.apiserver.in_process_server import InProcessServer
from volplane.apiserver.watch_cache import CACHED
from volplane.base import memory
from volplane.client.cache import Caches
from volplane.store.sqlite import SqliteStore


def config(name: str = "a", **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"), data=data)


async def test_objects_in_a_client_cache_are_never_decoded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        cache = w.client.cache(ConfigMap)
        await cache.wait_synced()
        await w.client.create(config(x="1"))
        watch_cache = w.core.backend.registry.of(ConfigMap).watch_cache
        for number in range(CACHED + 1):
            last = await w.client.create(config(f"other-{number}"))
            await cache.wait_for(last.revision)
        loaded: list[Any] = []
        load = watch_cache.access.load

        def count_load(*args: Any) -> Any:
            loaded.append(args)
            return load(*args)

        monkeypatch.setattr(watch_cache.access, "load", count_load)
        assert await w.client.get(ConfigMap, "a", "default") is cache.get("a", "default")
        assert loaded == []
        patched = await w.client.patch(ConfigMap, "a", "default", merge={"data": {"x": "2"}})
        await cache.wait_for(patched.revision)
        assert cache.get("a", "default") is patched
        assert loaded == []


async def test_watchers_share_the_writers_object_without_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore.open(tmp_path / "db")
    core = await InProcessServer(store).start()
    try:
        client = core.in_process_transport()
        async with Caches(client) as caches:
            cache = caches.get(ConfigMap)
            await cache.wait_synced()
            watch_cache = core.backend.registry.of(ConfigMap).watch_cache
            decoded: list[Any] = []
            load = watch_cache.access.load

            def count_load(*args: Any) -> Any:
                decoded.append(args)
                return load(*args)

            monkeypatch.setattr(watch_cache.access, "load", count_load)
            made = await client.create(config(x="1"))
            await cache.wait_for(made.revision)
            assert cache.get("a", "default") is made
            with pytest.raises(AlreadyExists):
                await client.create(config(x="2"))
            assert cache.get("a", "default") is made
            assert decoded == []
            assert watch_cache._pending == {}
    finally:
        await core.close()
        await store.close()


async def test_old_cached_objects_are_dropped() -> None:
    async with world() as w:
        watch_cache = w.core.backend.registry.of(ConfigMap).watch_cache
        old = weakref.ref(await w.client.create(config("old")))
        watch_cache.forget()
        assert old() is not None  # kept for one period
        young = weakref.ref(await w.client.create(config("young")))
        watch_cache.forget()
        assert old() is None
        assert young() is not None
        assert (await w.client.get(ConfigMap, "old", "default")).name == "old"


async def test_objects_in_a_client_cache_are_not_dropped() -> None:
    async with world() as w:
        cache = w.client.cache(ConfigMap)
        await cache.wait_synced()
        made = await w.client.create(config())
        await cache.wait_for(made.revision)
        watch_cache = w.core.backend.registry.of(ConfigMap).watch_cache
        watch_cache.forget()
        watch_cache.forget()
        assert await w.client.get(ConfigMap, "a", "default") is cache.get("a", "default")


@pytest.mark.virtual
async def test_the_server_expires_its_watch_caches_itself() -> None:
    async with world() as w:
        old = weakref.ref(await w.client.create(config("old")))
        await asyncio.sleep(2 * memory.EVERY + 1)
        assert old() is None


async def test_two_servers_in_one_process_have_caches_of_their_own() -> None:
    async with world() as one, world() as two:
        await one.client.create(config(x="1"))
        assert await two.client.find(ConfigMap, "a", "default") is None
        first, second = (w.core.backend.registry for w in (one, two))
        assert openapi.documents_of(first) is openapi.documents_of(first)
        assert openapi.documents_of(first) is not openapi.documents_of(second)
