"""What is written in this process is decoded by nobody in it, also where watchers hear of a commit first."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest

from tests.loops.inprocess import world
from volplane.api.core import ConfigMap
from volplane.api.errors import AlreadyExists
from volplane.api.meta import ObjectMeta
from volplane.apiserver.in_process_server import InProcessServer
from volplane.apiserver.watch_cache import CACHED
from volplane.client.cache import Caches
from volplane.store.sqlite import SqliteStore


def config(name: str = "a", **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"), data=data)


async def test_what_a_cache_holds_is_decoded_by_nobody_however_much_was_written_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        cache = w.client.cache(ConfigMap)
        await cache.wait_synced()
        await w.client.create(config(x="1"))
        feed = w.core.backend.registry.of(ConfigMap).watch_cache
        for number in range(CACHED + 1):
            last = await w.client.create(config(f"other-{number}"))
            await cache.wait_for(last.revision)
        loaded: list[Any] = []
        load = feed.shape.load

        def count_load(*args: Any) -> Any:
            loaded.append(args)
            return load(*args)

        monkeypatch.setattr(feed.shape, "load", count_load)
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
            feed = core.backend.registry.of(ConfigMap).watch_cache
            decoded: list[Any] = []
            load = feed.shape.load

            def count_load(*args: Any) -> Any:
                decoded.append(args)
                return load(*args)

            monkeypatch.setattr(feed.shape, "load", count_load)
            made = await client.create(config(x="1"))
            await cache.wait_for(made.revision)
            assert cache.get("a", "default") is made
            with pytest.raises(AlreadyExists):
                await client.create(config(x="2"))
            assert cache.get("a", "default") is made
            assert decoded == []
            assert feed._coming == {}
    finally:
        await core.close()
        await store.close()


async def test_what_was_worked_out_is_forgotten_when_it_is_old() -> None:
    async with world() as w:
        feed = w.core.backend.registry.of(ConfigMap).watch_cache
        old = weakref.ref(await w.client.create(config("old")))
        feed.forget()
        assert old() is not None  # somebody may be about to ask
        young = weakref.ref(await w.client.create(config("young")))
        feed.forget()
        assert old() is None
        assert young() is not None
        assert (await w.client.get(ConfigMap, "old", "default")).name == "old"


async def test_what_a_cache_holds_is_not_forgotten() -> None:
    async with world() as w:
        cache = w.client.cache(ConfigMap)
        await cache.wait_synced()
        made = await w.client.create(config())
        await cache.wait_for(made.revision)
        feed = w.core.backend.registry.of(ConfigMap).watch_cache
        feed.forget()
        feed.forget()
        assert await w.client.get(ConfigMap, "a", "default") is cache.get("a", "default")
