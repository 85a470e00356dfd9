"""Contract attach-and-mount E: the scheduler's process killed after each of its writes, on a real server."""

from __future__ import annotations

from pathlib import Path

from tests.contract.provisioning.claims_env import PATIENCE
from tests.controllers.objects import account, claim, node, pod, storage_class, volume
from tests.loops.inprocess import until
from tests.support import role_processes
from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.core import PersistentVolumeClaim, Pod

BINDER = ("controller-manager", "--controllers", "persistentvolume-binder-controller")


async def test_a_scheduler_killed_between_the_claims_write_and_the_binding_continues_on_that_node(
    tmp_path: Path,
) -> None:
    async with role_processes.server(tmp_path) as server:
        client = server.client

        async def chosen() -> str:
            return (await client.get(PersistentVolumeClaim, "data", "default")).metadata.annotations.get(
                SELECTED_NODE_ANNOTATION, ""
            )

        async def placed() -> str:
            return (await client.get(Pod, "p", "default")).spec.node_name

        await client.create(account())
        for name in ("a", "b", "c"):
            await client.create(node(name))
        await client.create(storage_class("late", "WaitForFirstConsumer"))
        async with server.role("scheduler", die="patch PersistentVolumeClaim:after") as dying:
            await client.create(claim("data", cls="late"))
            await client.create(pod("p", "data"))
            await dying.wait_until_killed()
        where = await chosen()
        assert where
        assert not await placed()
        async with server.role("scheduler"), server.role(*BINDER):
            mine = await client.get(PersistentVolumeClaim, "data", "default")
            reference = {"namespace": "default", "name": "data", "uid": mine.uid}
            await client.create(volume("made", cls="late", claimRef=reference))
            assert await until(placed, PATIENCE) == where
        assert await chosen() == where


async def test_a_scheduler_killed_right_after_the_binding_has_nothing_left_to_do(tmp_path: Path) -> None:
    async with role_processes.server(tmp_path) as server:
        await server.client.create(account())
        await server.client.create(node("a"))
        async with server.role("scheduler", die="create Binding/binding:after") as dying:
            await server.client.create(pod("p"))
            await dying.wait_until_killed()
        bound = await server.client.get(Pod, "p", "default")
        assert bound.spec.node_name == "a"
        async with server.role("scheduler"):
            await server.client.create(pod("next"))

            async def placed() -> str:
                return (await server.client.get(Pod, "next", "default")).spec.node_name

            await until(placed, PATIENCE)
        after = await server.client.get(Pod, "p", "default")
        assert after.metadata.resource_version == bound.metadata.resource_version
