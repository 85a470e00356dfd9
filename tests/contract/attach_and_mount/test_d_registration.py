"""Section D, case by case: which sockets in plugins_registry become drivers, and which are told why not."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.contract.attach_and_mount.grounds import node_world
from tests.loops.inprocess import until
from tests.node.node_env import DRIVER, NODE, FakeDiskDriver, NodeEnv, wait_briefly
from tests.node.node_process import node_process_env
from volplane.api.core import Node
from volplane.api.storage import CSINode
from volplane.csi import v1
from volplane.csi.outcome import CallError, Code
from volplane.csi.registration import RegistrationNotice, RegistrationServer
from volplane.node.plugin_watcher import highest_supported_version
from volplane.sdk import DriverServer

NODE_ID = "csi.volume.kubernetes.io/nodeid"

pytestmark = pytest.mark.root


async def registrar(
    here: NodeEnv, stack: AsyncExitStack, *, where: str = "", name: str = DRIVER, **options: object
) -> RegistrationServer:
    directory = os.path.join(here.paths.real(here.paths.registry), where)
    os.makedirs(directory, exist_ok=True)
    made = RegistrationServer(directory, name, here.paths.driver_socket(name), **options)  # type: ignore[arg-type]
    await stack.enter_async_context(made)
    return made


async def driver(here: NodeEnv, stack: AsyncExitStack, disks: FakeDiskDriver | None = None) -> None:
    path = here.paths.real(here.paths.driver_socket(DRIVER))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    await stack.enter_async_context(DriverServer(disks or here.disks, path, grace=0))


async def verdict(made: RegistrationServer) -> RegistrationNotice:
    async with asyncio.timeout(30):
        return await made.next_notice()


async def drivers(here: NodeEnv) -> list[str]:
    return [d.name for d in (await here.client.get(CSINode, NODE)).spec.drivers]


@asynccontextmanager
async def seen(here: NodeEnv) -> AsyncIterator[list[list[str]]]:
    """Which drivers CSINode has, now and after each change."""
    cache = here.client.cache(CSINode)
    await cache.wait_synced()
    states = [[d.name for d in node.spec.drivers] for node in cache.all()]

    def changed(old: CSINode | None, new: CSINode | None) -> None:
        if old is not None and new is not None:
            states.append([d.name for d in new.spec.drivers])

    end = cache.subscribe(changed)
    try:
        yield states
    finally:
        end()


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
    assert highest_supported_version(versions) == chosen


async def test_dotfile_regular_file_nested_directory_with_a_socket_ignored_ignored_found() -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        await driver(here, stack)
        registry = here.paths.real(here.paths.registry)
        with open(f"{registry}/file", "w"), socket.socket(socket.AF_UNIX) as hidden:  # noqa: ASYNC230
            hidden.bind(f"{registry}/.hidden")
            made = await registrar(here, stack, where="nested")
            assert await verdict(made) == RegistrationNotice(True, "")
        assert await drivers(here) == [DRIVER]


@pytest.mark.parametrize("versions", [["2.0.0"], []])
async def test_version_list_2_or_empty_refused(versions: list[str]) -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        await driver(here, stack)
        made = await registrar(here, stack, versions=versions)
        reported = await verdict(made)
        assert not reported.registered
        assert "none of the CSI versions" in reported.error
        assert await drivers(here) == []


async def test_another_kind_of_plugin_is_refused() -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        made = await registrar(here, stack, type="DevicePlugin")
        reported = await verdict(made)
        assert not reported.registered
        assert "No handler registered for plugin type: DevicePlugin" in reported.error


async def test_two_sockets_announcing_the_same_driver_second_refused_first_intact() -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        await driver(here, stack)
        first = await registrar(here, stack)
        assert (await verdict(first)).registered
        second = await registrar(here, stack, where="other")
        reported = await verdict(second)
        assert reported.error == (
            "Another driver with the same name is already registered with a higher supported version"
        )
        assert await drivers(here) == [DRIVER]


async def test_registrar_restart_deregister_then_register_one_entry() -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        await driver(here, stack)
        async with seen(here) as states:
            async with AsyncExitStack() as first:
                made = await registrar(here, first)
                assert (await verdict(made)).registered
            again = await registrar(here, stack)
            assert (await verdict(again)).registered

            async def gone_and_back() -> bool:
                return states[-3:] == [[DRIVER], [], [DRIVER]]

            await until(gone_and_back)
        assert await drivers(here) == [DRIVER]
        assert here.role is not None
        assert [d.name for d in here.role.drivers] == [DRIVER]


async def test_a_refused_socket_is_asked_again_and_pauses_end_where_the_flag_says() -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start(volume_retry_interval_max=0.1)
        await driver(here, stack)
        made = await registrar(here, stack, versions=["2.0.0"])
        for _ in range(7):  # doubling from 500 ms they would take longer than anybody waits here
            assert not (await verdict(made)).registered


class Nameless(FakeDiskDriver):
    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        return v1.NodeGetInfoResponse(node_id="")


class Broken(FakeDiskDriver):
    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        raise CallError(Code.INTERNAL, "not yet")


class Hanging(FakeDiskDriver):
    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        await asyncio.sleep(3600)
        raise AssertionError("somebody has waited")


@pytest.mark.parametrize(("kind", "why"), [(Broken, "desc = not yet"), (Nameless, "node ID is empty")])
async def test_nodegetinfo_error_or_empty_id_notify_false_no_csinode_entry_registrar_exits_1(
    kind: type[FakeDiskDriver], why: str
) -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        await driver(here, stack, kind(here.paths))
        flags = {
            "csi-address": here.paths.real(here.paths.driver_socket(DRIVER)),
            "kubelet-registration-path": here.paths.driver_socket(DRIVER),
            "plugin-registration-path": here.paths.real(here.paths.registry),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "volplane", "registrar", *(f"--{k}={v}" for k, v in flags.items())),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode == 1, said
        assert "RegisterPlugin error -- plugin registration failed with err: " in said.decode()
        assert why in said.decode()
        assert await drivers(here) == []
        assert here.role is not None
        assert list(here.role.drivers) == []


async def test_nodegetinfo_that_hangs_is_given_up_when_the_flag_says() -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start(csi_timeout=0.3)
        await driver(here, stack, Hanging(here.paths))
        reported = await verdict(await registrar(here, stack))
        assert not reported.registered
        assert "code = DeadlineExceeded" in reported.error
        assert await drivers(here) == []


async def test_topology_value_changed_for_an_existing_label_registration_refused() -> None:
    async with node_world() as here, AsyncExitStack() as stack:
        await here.start()
        label = {"metadata": {"labels": {"topology.disks.test/zone": "b"}}}
        await here.client.patch(Node, NODE, merge=label)
        await driver(here, stack)
        made = await registrar(here, stack)
        reported = await verdict(made)
        assert not reported.registered
        assert "detected topology value collision" in reported.error


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


@pytest.mark.slow
async def test_kubelet_restart_all_sockets_reregistered_no_csinode_flapping() -> None:
    async with node_process_env() as (here, child):
        await child.start()
        assert here.registrar is not None
        assert (await verdict(here.registrar)).registered
        before = await here.wait_until_registered()
        await child.kill()
        async with seen(here) as states:
            await child.start()
            assert (await verdict(here.registrar)).registered
            await wait_briefly()
        assert all(each == [DRIVER] for each in states)
        after = await here.wait_until_registered()
        assert (after.uid, after.spec) == (before.uid, before.spec)


class Resized(FakeDiskDriver):
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
        await here.wait_until_registered()
        await here.volume()
        await here.pod(claim="data")
        await here.wait_until_ready()
        mounted = here.list_mounts()
        await here.stop_driver()

        async def deregistered() -> bool:
            """Gone from the CSINode, and then from the Node's annotation."""
            node = await here.client.get(Node, NODE)
            return await drivers(here) == [] and NODE_ID not in node.metadata.annotations

        await until(deregistered)
        assert here.list_mounts() == mounted
        node = await here.client.get(Node, NODE)
        assert node.metadata.labels["topology.disks.test/zone"] == "a"
        await here.start_driver()
        await here.wait_until_registered()
        assert here.list_mounts() == mounted
        await here.delete()
        await here.wait_for_phase("gone")

        async def clean() -> bool:
            return here.list_mounts() == []

        await until(clean)
