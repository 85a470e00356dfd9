"""A namespace is emptied in order, on the real API server."""

from __future__ import annotations

import pytest
from msgspec import structs

from tests.controllers.garbage.test_garbage_custom import Widget, definition
from tests.controllers.objects import account, pod
from tests.loops.inprocess import running, until, world
from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.core import ConfigMap, Namespace, Pod
from volplane.api.meta import ObjectMeta
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


async def test_custom_objects_are_content_of_the_namespace() -> None:
    async with world() as env:
        client = env.client
        await client.create(definition())

        async def is_served() -> bool:
            held = await client.get(CustomResourceDefinition, "widgets.example.com")
            return any(c.type == "Established" and c.status == "True" for c in held.status.conditions)

        await until(is_served)
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
