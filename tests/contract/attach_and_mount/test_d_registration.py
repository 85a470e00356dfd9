"""Section D, case by case: which sockets in plugins_registry become drivers, and which are told why not."""

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
from volplane.csi.outcome import CallError, Code
from volplane.csi.registration import Notice, Registrar
from volplane.node.plugins import highest
from volplane.sdk import Server
from volplane.sidecars import registrar as sidecar

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


async def test_dotfile_regular_file_nested_directory_with_a_socket_ignored_ignored_found() -> None:
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
async def test_version_list_2_or_empty_refused(versions: list[str]) -> None:
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


async def test_two_sockets_announcing_the_same_driver_second_refused_first_intact() -> None:
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


async def test_registrar_restart_deregister_then_register_one_entry() -> None:
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


async def test_nodegetinfo_empty_id_notify_false_no_csinode_entry() -> None:
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


async def test_topology_value_changed_for_an_existing_label_registration_refused() -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        label = {"metadata": {"labels": {"topology.disks.test/zone": "b"}}}
        await here.client.patch(Node, NODE, merge=label)
        await driver(here, stack)
        made = await registrar(here, stack)
        told = await verdict(made)
        assert not told.registered
        assert "detected topology value collision" in told.error


async def test_node_object_recreated_with_a_new_uid_stale_csinode_recreated_at_next_kubelet_start() -> None:
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


async def test_csinode_deleted_by_hand_recreated_by_the_next_driver_update() -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        await here.client.delete(CSINode, NODE)
        await driver(here, stack)
        made = await registrar(here, stack)
        assert (await verdict(made)).registered
        assert await drivers(here) == [DRIVER]


async def test_nodegetinfo_error_notify_false_and_the_registrar_ends() -> None:
    class Broken(Disks):
        async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
            raise CallError(Code.INTERNAL, "not yet")

    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        await driver(here, stack, Broken(here.paths))
        settings = sidecar.Settings(
            csi_address=here.paths.real(here.paths.driver_socket(DRIVER)),
            kubelet_registration_path=here.paths.driver_socket(DRIVER),
            plugin_registration_path=here.paths.real(here.paths.registry),
        )
        with pytest.raises(sidecar.RegistrationFailed, match="not yet"):  # which ends the program with 1
            async with asyncio.timeout(30):
                await sidecar.run(settings)
        assert await drivers(here) == []


async def test_kubelet_restart_all_sockets_reregistered_no_csinode_flapping() -> None:
    async with node_world() as here:
        await here.start()
        await here.start_driver()
        before = await here.registered()
        await here.stop(drain=False)
        seen: list[CSINode] = []
        cache = here.client.cache(CSINode)
        await cache.synced()
        end = cache.subscribe(lambda old, new: seen.append(new) if new is not None else None)
        role = await here.start()

        async def again() -> bool:
            return role.drivers.get(DRIVER) is not None

        await until(again)
        await settled()
        end()
        assert {each.spec.drivers for each in seen} == {before.spec.drivers}
        assert (await here.registered()).uid == before.uid


class Resized(Disks):
    limit = 5

    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        return v1.NodeGetInfoResponse(node_id="n-1", max_volumes_per_node=self.limit)


@pytest.mark.parametrize(("limit", "count"), [(9, 9), (1 << 40, (1 << 31) - 1), (0, None)])
async def test_max_volumes_per_node_changes_on_reregistration(limit: int, count: int | None) -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        disks = Resized(here.paths)
        await here.start()
        await driver(here, stack, disks)
        async with AsyncExitStack() as first:
            assert (await verdict(await registrar(here, first))).registered
            (known,) = (await here.client.get(CSINode, NODE)).spec.drivers
            assert known.allocatable is not None
            assert known.allocatable.count == 5
        disks.limit = limit
        assert (await verdict(await registrar(here, stack))).registered
        (known,) = (await here.client.get(CSINode, NODE)).spec.drivers
        assert (known.allocatable.count if known.allocatable is not None else None) == count


async def test_csinode_deleted_by_hand_recreated_by_the_next_kubelet_start() -> None:
    async with node_world() as here:
        await here.start()
        await here.client.delete(CSINode, NODE)
        await here.stop()
        await here.start()
        assert await drivers(here) == []


async def test_a_driver_is_upgraded_while_its_volumes_are_mounted() -> None:
    """Deregistered, replaced, registered: mounts stay, and the new one takes them down."""
    async with node_world() as here:
        await here.start()
        await here.start_driver()
        await here.registered()
        await here.volume()
        await here.pod(claim="data")
        await here.until_ready()
        mounted = here.mounted()
        await here.stop_driver()

        async def deregistered() -> bool:
            return await drivers(here) == []

        await until(deregistered)
        assert here.mounted() == mounted
        node = await here.client.get(Node, NODE)
        assert node.metadata.labels["topology.disks.test/zone"] == "a"
        assert "csi.volume.kubernetes.io/nodeid" not in node.metadata.annotations
        await here.start_driver()
        await here.registered()
        assert here.mounted() == mounted
        await here.delete()
        await here.until_phase("gone")

        async def clean() -> bool:
            return here.mounted() == []

        await until(clean)
