"""A running node restores status that others have overwritten: its own, its pods', volumesInUse."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.loops.inprocess import until
from tests.node.node_env import DRIVER, NODE, NodeEnv, node_env, unique_name
from volplane.api.core import Node, Pod
from volplane.api.storage import CSINode
from volplane.client.client import Client
from volplane.node.options import NodeOptions
from volplane.node.status import NodeObject

pytestmark = pytest.mark.root


async def state(here: NodeEnv, kind: type[Any], name: str, namespace: str = "") -> str:
    held = await here.client.get(kind, name, namespace)
    return next((c.status for c in held.status.conditions if c.type == "Ready"), "")


async def set_ready_condition(here: NodeEnv, kind: type[Any], name: str, namespace: str, status: str) -> None:
    body = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
    await here.client.patch(kind, name, namespace, strategic=body, subresource="status")


async def test_a_node_that_is_marked_unknown_reports_at_once() -> None:
    async with node_env() as here:
        await here.start()

        async def ready() -> bool:
            return await state(here, Node, NODE) == "True"

        await until(ready)
        await set_ready_condition(here, Node, NODE, "", "Unknown")
        await until(ready, 5)


async def test_a_pod_that_is_marked_unready_is_ready_again() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod()
        pod = await here.wait_until_ready()
        await set_ready_condition(here, Pod, pod.name, pod.namespace, "False")

        async def ready() -> bool:
            return await state(here, Pod, pod.name, pod.namespace) == "True"

        await until(ready, 5)


async def with_a_volume(here: NodeEnv) -> None:
    await here.start()
    await here.start_driver()
    await here.wait_until_registered()
    await here.volume()
    await here.pod(claim="data")
    await here.wait_until_ready()


async def shown_from_now_on(here: NodeEnv) -> list[tuple[str, tuple[str, ...]]]:
    """Of every revision of the Node: its uid and its volumesInUse."""
    shown: list[tuple[str, tuple[str, ...]]] = []
    cache = here.client.cache(Node)
    await cache.wait_synced()
    cache.subscribe(lambda _, new: shown.append((new.uid, new.status.volumes_in_use)) if new else None)
    return shown


async def test_a_node_that_is_deleted_comes_back_with_its_volumes_and_its_drivers() -> None:
    """Without volumesInUse the controller would detach mounted volumes, and attach none here any more."""
    async with node_env() as here:
        await with_a_volume(here)
        old = await here.client.get(Node, NODE)
        shown = await shown_from_now_on(here)
        await here.client.delete(Node, NODE)

        async def known_again() -> bool:
            node, drivers = await here.client.find(Node, NODE), await here.client.find(CSINode, NODE)
            return (
                node is not None
                and "topology.disks.test/zone" in node.metadata.labels
                and drivers is not None
                and drivers.metadata.owner_references[0].uid == node.uid
                and [driver.name for driver in drivers.spec.drivers] == [DRIVER]
            )

        await until(known_again)
        assert {names for uid, names in shown if uid != old.uid} == {(unique_name(),)}
        await here.attach()
        await here.delete()
        await here.wait_for_phase("gone")


async def test_a_node_that_is_deleted_while_it_was_down_comes_back_with_its_volumes() -> None:
    async with node_env() as here:
        await with_a_volume(here)
        await here.stop(drain=False)
        await here.client.delete(Node, NODE)
        shown = await shown_from_now_on(here)
        await here.start()
        await here.wait_until_ready()
        assert {names for _, names in shown} == {(unique_name(),)}


async def test_volumes_in_use_can_be_said_while_the_node_is_deleted() -> None:
    async with node_env() as here:
        client = here.api.separate_client("kubelet")
        node = NodeObject(client, NodeOptions(hostname_override=NODE), NODE)
        await node.register()
        await here.client.delete(Node, NODE)
        node.list_volumes_in_use = lambda: ["a-volume"]
        node.report_volumes_in_use()
        life = asyncio.create_task(node.run())
        try:

            async def said() -> bool:
                found = await here.client.find(Node, NODE)
                assert not life.done(), life.exception()
                return found is not None and found.status.volumes_in_use == ("a-volume",)

            await until(said)
        finally:
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            await client.close()


class Slow:
    """A client whose patches wait until they are released."""

    def __init__(self, client: Client) -> None:
        self._client, self.door, self.asked = client, asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def patch(self, *arguments: Any, **options: Any) -> Any:
        self.asked.set()
        await self.door.wait()
        return await self._client.patch(*arguments, **options)


async def test_a_node_that_stops_waits_for_its_last_volume_to_have_left() -> None:
    """A cancelled write would leave the volume in use by a stopped node, and never detached."""
    async with node_env() as here:
        client = here.api.separate_client("kubelet")
        node = NodeObject(client, NodeOptions(hostname_override=NODE), NODE)
        held = ["a-volume"]
        node.list_volumes_in_use = lambda: list(held)
        await node.register()
        await node.cache.wait_synced()
        slow = Slow(client)
        node.client = cast("Client", slow)
        life = asyncio.create_task(node.run())
        try:
            held.clear()
            node.report_volumes_in_use()
            await slow.asked.wait()
            last = asyncio.create_task(node.wait_until_written())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not last.done(), "the API server has not heard of it"
            slow.door.set()
            await asyncio.wait_for(last, 10)
            assert (await here.client.get(Node, NODE)).status.volumes_in_use == ()
        finally:
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            await client.close()


async def test_volumes_in_use_that_somebody_else_has_written_are_corrected() -> None:
    """A request that timed out may be served late, after the one that followed it."""
    async with node_env() as here:
        await with_a_volume(here)
        status: dict[str, Any] = {"status": {"volumesInUse": []}}
        await here.client.patch(Node, NODE, merge=status, subresource="status")

        async def corrected() -> bool:
            return await here.in_use() == [unique_name()]

        await until(corrected)
