"""A namespace is emptied in order, on the real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

from tests.controllers.garbage.test_garbage_custom import Widget, definition
from tests.controllers.objects import account, pod
from tests.loops.inprocess import running, until, world
from volplane.api import kinds
from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.core import ConfigMap, Namespace, Pod, Secret
from volplane.api.errors import InternalError
from volplane.api.meta import ObjectMeta
from volplane.client.client import Client
from volplane.controllers.namespace.controller import Namespaces

pytestmark = pytest.mark.virtual


async def test_what_pods_use_stays_until_they_are_gone() -> None:
    async with world() as env:
        client = env.client
        await client.create(Namespace(metadata=ObjectMeta(name="team")))
        await client.create(structs.replace(account(), metadata=ObjectMeta(name="default", namespace="team")))
        meta = ObjectMeta(name="slow", namespace="team", finalizers=("example.com/hold",))
        await client.create(structs.replace(pod("slow"), metadata=meta))
        await client.create(ConfigMap(metadata=ObjectMeta(name="settings", namespace="team")))
        async with running(Namespaces(env.role("namespaces")).run()):
            await client.delete(Namespace, "team")

            async def remains() -> bool:
                conditions = (await client.get(Namespace, "team")).status.conditions
                return any("pods has 1 resource instances" in c.message for c in conditions)

            await until(remains)
            assert await client.find(ConfigMap, "settings", "team") is not None
            await client.patch(Pod, "slow", "team", merge={"metadata": {"finalizers": None}})

            async def gone() -> bool:
                return await client.find(Namespace, "team") is None

            assert await until(gone)


class ChangedTransport:
    """A transport that answers some requests in another way."""

    def __init__(self, inner: Any, **changed: Any) -> None:
        self._inner = inner
        self.__dict__.update(changed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def test_a_kind_that_the_cache_does_not_show_is_emptied() -> None:
    async with world() as env:
        client, inner = env.client, env.transport()

        def watch(type: Any, *args: Any, **options: Any) -> Any:
            return never() if type is CustomResourceDefinition else inner.watch(type, *args, **options)

        @asynccontextmanager
        async def never() -> AsyncIterator[Any]:
            async def batches() -> AsyncIterator[Any]:
                await asyncio.get_running_loop().create_future()
                yield

            yield batches()

        lagging = Client(ChangedTransport(inner, watch=watch), component="namespaces")
        async with running(Namespaces(lagging).run()):
            await asyncio.sleep(1)
            await client.create(definition())
            await until(lambda: is_served(client))
            await client.create(Namespace(metadata=ObjectMeta(name="team")))
            meta = ObjectMeta(name="held", namespace="team", finalizers=("example.com/hold",))
            await client.create(Widget(metadata=meta))
            await client.delete(Namespace, "team")

            async def remains() -> bool:
                conditions = (await client.get(Namespace, "team")).status.conditions
                return any("widgets.example.com has 1 resource instances" in c.message for c in conditions)

            assert await until(remains)
        await lagging.close()


async def is_served(client: Client) -> bool:
    held = await client.get(CustomResourceDefinition, "widgets.example.com")
    return any(c.type == "Established" and c.status == "True" for c in held.status.conditions)


@pytest.mark.parametrize("verb", ["list", "delete"])
async def test_an_error_does_not_keep_other_objects(verb: str) -> None:
    async with world() as env:
        client, inner = env.client, env.transport()
        await client.create(Namespace(metadata=ObjectMeta(name="team")))
        await client.create(ConfigMap(metadata=ObjectMeta(name="refused", namespace="team")))
        await client.create(Secret(metadata=ObjectMeta(name="deleted", namespace="team")))
        fails = True

        async def ask(type: Any, *args: Any, **options: Any) -> Any:
            if fails and kinds.of(type).kind == "ConfigMap":
                raise InternalError("out of order")
            return await getattr(inner, verb)(type, *args, **options)

        changed = ChangedTransport(inner, **{verb: ask})
        faulty = Client(changed, caches=env.caches, component="namespaces")
        async with running(Namespaces(faulty).run()):
            await client.delete(Namespace, "team")

            async def failure() -> Any:
                conditions = (await client.get(Namespace, "team")).status.conditions
                return next((c for c in conditions if c.reason == "ContentDeletionFailed"), None)

            found = await until(failure)
            assert (found.type, found.status) == ("NamespaceDeletionContentFailure", "True")
            assert found.message == "Failed to delete all resource types, 1 remaining: out of order"
            assert await client.find(Secret, "deleted", "team") is None
            assert await client.find(ConfigMap, "refused", "team") is not None
            fails = False

            async def gone() -> bool:
                return await client.find(Namespace, "team") is None

            assert await until(gone)


async def test_custom_objects_are_content_of_the_namespace() -> None:
    async with world() as env:
        client = env.client
        await client.create(definition())
        await until(lambda: is_served(client))
        await client.create(Namespace(metadata=ObjectMeta(name="team")))
        meta = ObjectMeta(name="held", namespace="team", finalizers=("example.com/hold",))
        await client.create(Widget(metadata=meta))
        async with running(Namespaces(env.role("namespaces")).run()):
            await client.delete(Namespace, "team")

            async def remains() -> bool:
                conditions = (await client.get(Namespace, "team")).status.conditions
                return any("widgets.example.com has 1 resource instances" in c.message for c in conditions)

            await until(remains)
            await client.patch(Widget, "held", "team", merge={"metadata": {"finalizers": None}})

            async def gone() -> bool:
                return await client.find(Namespace, "team") is None

            assert await until(gone)
