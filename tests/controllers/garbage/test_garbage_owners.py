"""Owners that wait, owners in a circle, and dependents with several owners, on the real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec import to_builtins

from tests.loops.inprocess import InProcessEnv, running, until, world
from volplane.api.core import ConfigMap
from volplane.api.meta import ObjectMeta, OwnerReference
from volplane.controllers.garbage.controller import GarbageCollector

pytestmark = pytest.mark.virtual


@asynccontextmanager
async def collecting() -> AsyncIterator[InProcessEnv]:
    async with world() as env, running(GarbageCollector(env.role("gc")).run()):
        yield env


async def make(env: InProcessEnv, name: str) -> ConfigMap:
    return await env.client.create(ConfigMap(metadata=ObjectMeta(name=name, namespace="default")))


async def own(env: InProcessEnv, name: str, *owners: ConfigMap, blocks: bool = True) -> None:
    references = [
        OwnerReference(
            api_version="v1", kind="ConfigMap", name=o.name, uid=o.uid, block_owner_deletion=blocks
        )
        for o in owners
    ]
    patch = {"metadata": {"ownerReferences": [to_builtins(r) for r in references]}}
    await env.client.patch(ConfigMap, name, "default", merge=patch)


async def left(env: InProcessEnv) -> set[str]:
    return {c.name for c in await env.client.list(ConfigMap, "default")}


async def becomes(env: InProcessEnv, *names: str) -> None:
    async def test() -> bool:
        return await left(env) == set(names)

    await until(test, 60)


@pytest.mark.parametrize("blocks", [True, False], ids=["blocking", "not blocking"])
@pytest.mark.parametrize("propagation", ["Foreground", "Background"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
async def test_a_circle_of_owners_is_deleted(size: int, propagation: str, blocks: bool) -> None:
    async with collecting() as env:
        made = [await make(env, f"c{at}") for at in range(size)]
        for at, each in enumerate(made):
            await own(env, each.name, made[at - 1], blocks=blocks)
        await env.client.delete(ConfigMap, "c0", "default", propagation=propagation)
        await becomes(env)


async def test_a_circle_whose_objects_are_all_deleted_at_once_is_deleted() -> None:
    async with collecting() as env:
        made = [await make(env, f"c{at}") for at in range(3)]
        for at, each in enumerate(made):
            await own(env, each.name, made[at - 1])
        deletes = (env.client.delete(ConfigMap, c.name, "default", propagation="Foreground") for c in made)
        await asyncio.gather(*deletes)
        await becomes(env)


async def test_circles_that_share_an_object_are_deleted() -> None:
    async with collecting() as env:
        a, b, c = [await make(env, name) for name in "abc"]
        await own(env, "a", b, c)
        await own(env, "b", a)
        await own(env, "c", a)
        await env.client.delete(ConfigMap, "a", "default", propagation="Foreground")
        await becomes(env)


@pytest.mark.parametrize("propagation", ["Foreground", "Background"])
async def test_a_dependent_with_another_owner_stays(propagation: str) -> None:
    async with collecting() as env:
        going, staying, _ = [await make(env, name) for name in ("going", "staying", "below")]
        await own(env, "below", going, staying)
        await env.client.delete(ConfigMap, "going", "default", propagation=propagation)
        await becomes(env, "staying", "below")
        await asyncio.sleep(5)
        below = await env.client.get(ConfigMap, "below", "default")
        assert [r.name for r in below.metadata.owner_references] == ["staying"]
        assert not below.is_deleting


async def test_an_owner_in_the_foreground_stays_until_its_blocking_dependents_are_gone() -> None:
    async with collecting() as env:
        owner = await make(env, "owner")
        for name, blocks in (("blocking", True), ("free", False)):
            await make(env, name)
            await own(env, name, owner, blocks=blocks)
            finalizers = {"metadata": {"finalizers": ["example.com/wait"]}}
            await env.client.patch(ConfigMap, name, "default", merge=finalizers)
        await env.client.delete(ConfigMap, "owner", "default", propagation="Foreground")
        await asyncio.sleep(5)
        held = {c.name: c.is_deleting for c in await env.client.list(ConfigMap, "default")}
        assert held == {"owner": True, "blocking": True, "free": True}
        await env.client.patch(ConfigMap, "blocking", "default", merge={"metadata": {"finalizers": None}})
        await becomes(env, "free")
