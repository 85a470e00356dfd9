"""What is written in this process is decoded by nobody in it, also where watchers hear of a commit first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from volplane.api.core import ConfigMap
from volplane.api.errors import AlreadyExists
from volplane.api.meta import ObjectMeta
from volplane.apiserver.core import Core
from volplane.client.cache import Caches
from volplane.store.sqlite import SqliteStore


def config(**data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name="a", namespace="default"), data=data)


async def test_watchers_share_the_writers_object_without_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore.open(tmp_path / "db")
    core = await Core(store).start()
    try:
        client = core.local()
        async with Caches(client) as caches:
            cache = caches.get(ConfigMap)
            await cache.synced()
            feed = core.backend.registry.of(ConfigMap).feed
            decoded: list[Any] = []
            load = feed.shape.load
            monkeypatch.setattr(feed.shape, "load", lambda *a: decoded.append(a) or load(*a))
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
