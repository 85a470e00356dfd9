"""Which sockets in plugins_registry become drivers, and which are told why not."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import AsyncExitStack

import pytest

from tests.loops.inprocess import until
from tests.node.nodeworld import DRIVER, NODE, Disks, NodeWorld, node_world, settled
from volplane.api.core import Node
from volplane.api.storage import CSINode
from volplane.csi import v1
from volplane.csi.registration import Notice, Registrar
from volplane.node.plugins import highest
from volplane.sdk import Server

pytestmark = pytest.mark.root


async def registrar(
    here: NodeWorld, stack: AsyncExitStack, *, where: str = "", name: str = DRIVER, **options: object
) -> Registrar:
    directory = os.path.join(here.paths.real(here.paths.registry), where)
    os.makedirs(directory, exist_ok=True)
    made = Registrar(directory, name, here.paths.driver_socket(name), **options)  # type: ignore[arg-type]
    await stack.enter_async_context(made)
    return made


async def driver(here: NodeWorld, stack: AsyncExitStack, disks: Disks | None = None) -> None:
    path = here.paths.real(here.paths.driver_socket(DRIVER))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    await stack.enter_async_context(Server(disks or here.disks, path, grace=0))


async def verdict(made: Registrar) -> Notice:
    async with asyncio.timeout(10):
        return await made.notice()


async def drivers(here: NodeWorld) -> list[str]:
    return [d.name for d in (await here.client.get(CSINode, NODE)).spec.drivers]


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (("1.0.0",), "1.0.0"),
        (("0.3.0", "1.0.0", "1.2.0"), "1.2.0"),
        (("2.0.0", "1.1.0"), "1.1.0"),
        (("2.0.0",), ""),
        ((), ""),
        (("one",), ""),
    ],
)
def test_the_highest_version_that_is_spoken(versions: tuple[str, ...], chosen: str) -> None:
    assert highest(versions) == chosen


async def test_a_socket_in_a_directory_is_found_others_are_not() -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        await driver(here, stack)
        registry = here.paths.real(here.paths.registry)
        with open(f"{registry}/file", "w"), socket.socket(socket.AF_UNIX) as hidden:  # noqa: ASYNC230
            hidden.bind(f"{registry}/.hidden")
            made = await registrar(here, stack, where="nested")
            assert await verdict(made) == Notice(True, "")
        assert await drivers(here) == [DRIVER]


@pytest.mark.parametrize("versions", [["2.0.0"], []])
async def test_a_version_nobody_speaks_is_refused(versions: list[str]) -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        await driver(here, stack)
        made = await registrar(here, stack, versions=versions)
        told = await verdict(made)
        assert not told.registered
        assert "none of the CSI versions" in told.error
        assert await drivers(here) == []


async def test_another_kind_of_plugin_is_refused() -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        made = await registrar(here, stack, type="DevicePlugin")
        told = await verdict(made)
        assert not told.registered
        assert "No handler registered for plugin type: DevicePlugin" in told.error


async def test_a_second_socket_for_the_same_driver_is_refused() -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        await driver(here, stack)
        first = await registrar(here, stack)
        assert (await verdict(first)).registered
        second = await registrar(here, stack, where="other")
        told = await verdict(second)
        assert told.error == (
            "Another driver with the same name is already registered with a higher supported version"
        )
        assert await drivers(here) == [DRIVER]


async def test_a_registrar_that_restarts_is_let_in_again() -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        await driver(here, stack)
        async with AsyncExitStack() as first:
            made = await registrar(here, first)
            assert (await verdict(made)).registered
        again = await registrar(here, stack)
        assert (await verdict(again)).registered
        await settled()
        assert await drivers(here) == [DRIVER]
        assert here.role is not None
        assert [d.name for d in here.role.drivers] == [DRIVER]


class Nameless(Disks):
    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        return v1.NodeGetInfoResponse(node_id="")


async def test_a_driver_without_a_node_id_is_refused() -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        await driver(here, stack, Nameless(here.paths))
        made = await registrar(here, stack)
        told = await verdict(made)
        assert not told.registered
        assert told.error.startswith("RegisterPlugin error -- plugin registration failed with err: ")
        assert await drivers(here) == []
        assert here.role is not None
        assert list(here.role.drivers) == []


async def test_a_topology_that_contradicts_the_nodes_label_is_refused() -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        label = {"metadata": {"labels": {"topology.disks.test/zone": "b"}}}
        await here.client.patch(Node, NODE, merge=label)
        await driver(here, stack)
        made = await registrar(here, stack)
        told = await verdict(made)
        assert not told.registered
        assert "detected topology value collision" in told.error


async def test_a_csinode_of_an_earlier_node_is_replaced() -> None:
    async with node_world() as here:
        await here.start()
        old = await here.client.get(CSINode, NODE)
        await here.stop()
        await here.client.delete(Node, NODE)
        await here.start()

        async def fresh() -> bool:
            found = await here.client.find(CSINode, NODE)
            node = await here.client.get(Node, NODE)
            return found is not None and found.metadata.owner_references[0].uid == node.uid

        await until(fresh)
        assert (await here.client.get(CSINode, NODE)).uid != old.uid


async def test_a_csinode_deleted_by_hand_comes_back_with_the_next_driver() -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        await here.client.delete(CSINode, NODE)
        await driver(here, stack)
        made = await registrar(here, stack)
        assert (await verdict(made)).registered
        assert await drivers(here) == [DRIVER]
