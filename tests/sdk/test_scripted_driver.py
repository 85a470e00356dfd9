"""The tests' own driver does what its script says: else what it proves of others would be worth nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support import scripted
from tests.support.scripted import Break, Delay, Fail, Hold, Lose
from volplane import sdk
from volplane.csi import v1
from volplane.csi.client import CsiChannel
from volplane.csi.outcome import CallError, Code

EVERY = ("attach", "list", "get-volume", "capacity", "expand", "node-expand", "modify", "snapshots", "groups")
CLAIMS = ("clone", "topology", "readonly", "list-published", "multi-writer", "condition", "offline")


def order(name: str = "a", size: int = 1 << 30) -> v1.CreateVolumeRequest:
    mount = v1.VolumeCapability.MountVolume()
    mode = v1.VolumeCapability.AccessMode(mode="SINGLE_NODE_WRITER")
    return v1.CreateVolumeRequest(
        name=name,
        capacity_range=v1.CapacityRange(required_bytes=size),
        volume_capabilities=[v1.VolumeCapability(mount=mount, access_mode=mode)],
    )


async def code(channel: sdk.Local | CsiChannel, request: v1.CreateVolumeRequest, timeout: float = 60) -> Code:
    try:
        await channel.call("CreateVolume", request, timeout=timeout)
    except CallError as error:
        return error.code
    return Code.OK


@pytest.mark.virtual
async def test_each_outcome_is_used_by_one_call() -> None:
    driver = scripted.driver()
    hold = Hold(then=Fail(Code.INTERNAL))
    driver.script("CreateVolume", Fail(Code.RESOURCE_EXHAUSTED), Lose(Code.ABORTED), Break(), Delay(5), hold)
    caller = sdk.Local(driver)
    assert await code(caller, order()) is Code.RESOURCE_EXHAUSTED
    assert driver.volumes == {}
    assert await code(caller, order()) is Code.ABORTED
    assert list(driver.volumes) == ["a"]
    assert await code(caller, order("b")) is Code.UNAVAILABLE
    assert list(driver.volumes) == ["a", "b"]
    assert await code(caller, order("c"), timeout=4) is Code.DEADLINE_EXCEEDED
    held = asyncio.ensure_future(code(caller, order("d")))
    await hold.reached_event.wait()
    assert not held.done()
    hold.release()
    assert await held is Code.INTERNAL
    assert await code(caller, order("d")) is Code.OK
    assert await code(caller, order("a", size=1)) is Code.ALREADY_EXISTS
    assert len(driver.requests_of("CreateVolume")) == 7
    await caller.close()


async def test_on_a_socket_a_broken_connection_is_noticed_and_the_next_call_works() -> None:
    driver = scripted.driver("attach")
    driver.script("CreateVolume", Break())
    async with scripted.on_socket(driver) as socket, CsiChannel(socket.path) as channel:
        assert await code(channel, order()) is Code.UNAVAILABLE
        assert list(driver.volumes) == ["a"]
        await channel.ready(60)
        assert await code(channel, order()) is Code.OK
        await socket.down()
        assert await code(channel, order()) is Code.UNAVAILABLE
        await socket.up()
        await channel.ready(60)
        assert await code(channel, order()) is Code.OK


async def test_a_driver_with_every_feature_offers_all_of_it() -> None:
    caller = sdk.Local(scripted.driver(*EVERY, *CLAIMS))
    reply = await caller.call("ControllerGetCapabilities", v1.ControllerGetCapabilitiesRequest())
    named = {v1.ControllerServiceCapability.RPC.Type.Name(c.rpc.type) for c in reply.capabilities}
    assert {"CLONE_VOLUME", "CREATE_DELETE_SNAPSHOT", "EXPAND_VOLUME", "MODIFY_VOLUME", "GET_VOLUME"} <= named
    assert {"GET_CAPACITY", "LIST_VOLUMES", "PUBLISH_UNPUBLISH_VOLUME", "PUBLISH_READONLY"} <= named
    await caller.close()


async def test_a_killed_driver_finds_its_volumes_again(tmp_path: Path) -> None:
    with scripted.process(tmp_path, "snapshots", "attach") as driver:
        driver.script("CreateVolume", Lose())
        async with CsiChannel(driver.socket) as channel:
            await channel.ready(60)
            assert await code(channel, order()) is Code.DEADLINE_EXCEEDED
            assert len(driver.requests_of("CreateVolume")) == 1
        driver.kill()
        driver.start()
        hold = driver.hold()
        driver.script("CreateVolume", hold)
        async with CsiChannel(driver.socket) as channel:
            await channel.ready(60)
            held = asyncio.ensure_future(code(channel, order()))
            while not hold.is_reached:  # noqa: ASYNC110 (another process says so)
                await asyncio.sleep(0.01)
            hold.release()
            assert await held is Code.OK
        assert list(driver.state.volumes) == ["a"]
