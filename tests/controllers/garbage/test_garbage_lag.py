"""Caches that lag behind the API server: what others have written meanwhile counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from msgspec import to_builtins

from tests.controllers.garbage.test_garbage_owners import make, own
from tests.controllers.namespace.test_namespace_controller import ChangedTransport
from tests.loops.inprocess import InProcessEnv, running, until, world
from volplane.api.core import ConfigMap, Secret
from volplane.api.meta import ObjectMeta, OwnerReference
from volplane.base.backoff import Backoff
from volplane.client.cache import Caches
from volplane.client.client import Client
from volplane.controllers.garbage.controller import GarbageCollector

pytestmark = pytest.mark.virtual

NEVER = Backoff(1e6, 1e6)
WRITES = count(1)


@asynccontextmanager
async def collecting(env: InProcessEnv, **changed: Any) -> AsyncIterator[None]:
    """A collector that retries nothing, on a transport of which these methods are changed."""
    transport: Any = ChangedTransport(env.transport(), **changed)
    async with Caches(transport) as caches:
        client = Client(transport, caches=caches, component="gc")
        async with running(GarbageCollector(client, backoff=NEVER).run()):
            yield


async def is_gone(env: InProcessEnv, name: str) -> bool:
    return await env.client.find(ConfigMap, name, "default") is None


async def owners_of(env: InProcessEnv, name: str) -> list[str]:
    found = await env.client.get(ConfigMap, name, "default")
    return [reference.name for reference in found.metadata.owner_references]


async def write_to(env: InProcessEnv, name: str) -> None:
    await env.client.patch(ConfigMap, name, "default", merge={"data": {"write": str(next(WRITES))}})


def before_patches_of(name: str, env: InProcessEnv, disturb: Callable[[], Awaitable[object]]) -> Any:
    """A `patch` that is preceded by somebody else's write, twice."""
    inner, left = env.transport(), [1, 2]

    async def patch(kind: Any, patched: str, *args: Any, **options: Any) -> Any:
        if patched == name and left:
            left.pop()
            await disturb()
        return await inner.patch(kind, patched, *args, **options)

    return patch


async def test_a_dependent_that_others_write_to_is_orphaned() -> None:
    async with world() as env:
        owner = await make(env, "owner")
        await make(env, "below")
        await own(env, "below", owner)
        async with collecting(env, patch=before_patches_of("below", env, lambda: write_to(env, "below"))):
            await env.client.delete(ConfigMap, "owner", "default", propagation="Orphan")
            await until(lambda: is_gone(env, "owner"))
            assert await owners_of(env, "below") == []


async def test_an_owner_that_was_added_meanwhile_is_kept() -> None:
    async with world() as env:
        owner, other = await make(env, "owner"), await make(env, "other")
        await make(env, "below")
        await own(env, "below", owner)

        async def disturb() -> None:
            await own(env, "below", owner, other)

        async with collecting(env, patch=before_patches_of("below", env, disturb)):
            await env.client.delete(ConfigMap, "owner", "default", propagation="Orphan")
            await until(lambda: is_gone(env, "owner"))
            assert await owners_of(env, "below") == ["other"]


async def test_a_dependent_that_others_write_to_loses_the_reference_to_a_deleted_owner() -> None:
    async with world() as env:
        owners = [await make(env, name) for name in ("going", "staying")]
        await make(env, "below")
        await own(env, "below", *owners)
        async with collecting(env, patch=before_patches_of("below", env, lambda: write_to(env, "below"))):
            await asyncio.sleep(5)  # all caches are filled
            await env.client.delete(ConfigMap, "going", "default")
            await asyncio.sleep(5)
            assert await owners_of(env, "below") == ["staying"]


async def test_a_dependent_that_its_other_owner_has_left_meanwhile_is_deleted() -> None:
    async with world() as env:
        going, staying = [await make(env, name) for name in ("going", "staying")]
        await make(env, "below")
        await own(env, "below", going, staying)

        async def disturb() -> None:
            await own(env, "below", going)

        async with collecting(env, patch=before_patches_of("below", env, disturb)):
            await asyncio.sleep(5)  # all caches are filled
            await env.client.delete(ConfigMap, "going", "default")
            await until(lambda: is_gone(env, "below"))


async def test_an_object_that_has_taken_the_place_of_a_dependent_is_left_alone() -> None:
    async with world() as env:
        owner = await make(env, "owner")
        await make(env, "below")
        await own(env, "below", owner)

        async def disturb() -> None:
            await env.client.delete(ConfigMap, "below", "default")
            await make(env, "below")

        async with collecting(env, patch=before_patches_of("below", env, disturb)):
            await env.client.delete(ConfigMap, "owner", "default", propagation="Orphan")
            await until(lambda: is_gone(env, "owner"))
            assert await owners_of(env, "below") == []


async def test_an_owner_in_deletion_that_others_write_to_is_let_go() -> None:
    async with world() as env:
        await make(env, "owner")
        async with collecting(env, patch=before_patches_of("owner", env, lambda: write_to(env, "owner"))):
            await env.client.delete(ConfigMap, "owner", "default", propagation="Foreground")
            await until(lambda: is_gone(env, "owner"))


async def test_an_owner_that_the_cache_does_not_show_yet_keeps_its_dependent() -> None:
    async with world() as env:
        inner, shows = env.transport(), asyncio.Event()

        @asynccontextmanager
        async def late(watching: Any) -> AsyncIterator[Any]:
            async def batches(inside: Any) -> AsyncIterator[Any]:
                async for batch in inside:
                    await shows.wait()
                    yield batch

            async with watching as inside:
                yield batches(inside)

        def watch(kind: Any, *args: Any, **options: Any) -> Any:
            watching = inner.watch(kind, *args, **options)
            return late(watching) if kind.__name__.startswith("Secret") else watching

        owner = await make(env, "owner")
        await make(env, "below")
        async with collecting(env, watch=watch):
            await asyncio.sleep(5)  # all caches are filled
            secret = await env.client.create(Secret(metadata=ObjectMeta(name="s", namespace="default")))
            references = [
                OwnerReference(api_version="v1", kind=kind, name=o.name, uid=o.uid)
                for kind, o in (("ConfigMap", owner), ("Secret", secret))
            ]
            below = await env.client.get(ConfigMap, "below", "default")
            meta = {"ownerReferences": [to_builtins(r) for r in references]}
            await env.client.patch(ConfigMap, below.name, "default", merge={"metadata": meta})
            await asyncio.sleep(5)
            assert await owners_of(env, "below") == ["owner", "s"]
            shows.set()
            await env.client.delete(ConfigMap, "owner", "default")
            await asyncio.sleep(5)
            assert await owners_of(env, "below") == ["s"]
