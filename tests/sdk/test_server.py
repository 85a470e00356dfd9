"""A driver behind a real socket: locks, joins, errors, logs, shutdown."""

from __future__ import annotations

import asyncio
import io
import logging
import os
from pathlib import Path

import pytest

from volplane.base import log as base_log
from volplane.csi import convert, v1
from volplane.csi.client import CsiChannel
from volplane.csi.outcome import CallError, Code
from volplane.sdk import Driver, DriverServer, Local, errors, serve

MOUNT = convert.capability(v1.VolumeCapability.AccessMode.SINGLE_NODE_WRITER)


class Slow(Driver):
    """Its calls stay under way until the test lets them go."""

    name, version = "slow.example.com", "1.0"

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.began: asyncio.Queue[str] = asyncio.Queue()
        self.ended: list[str] = []
        self.log: list[str] = []

    async def start(self) -> None:
        self.log.append("start")

    async def stop(self) -> None:
        self.log.append("stop")

    async def _hold(self, what: str) -> None:
        self.began.put_nowait(what)
        await self.go.wait()
        self.ended.append(what)

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        await self._hold(request.target_path)
        return v1.NodePublishVolumeResponse()

    async def node_unpublish_volume(
        self, request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        if request.volume_id == "broken":
            raise OSError("the disk is on fire")
        if request.volume_id == "missing":
            raise errors.NotFound("no such volume")
        return v1.NodeUnpublishVolumeResponse()

    async def node_expand_volume(self, request: v1.NodeExpandVolumeRequest) -> v1.NodeExpandVolumeResponse:
        await self._hold("expand")
        return v1.NodeExpandVolumeResponse(capacity_bytes=7)


def publish(target: str, **secrets: str) -> v1.NodePublishVolumeRequest:
    return v1.NodePublishVolumeRequest(
        volume_id="v", target_path=target, volume_capability=MOUNT, secrets=secrets
    )


EXPAND = v1.NodeExpandVolumeRequest(volume_id="v", volume_path="/v")


async def test_identity_and_capabilities_are_answered(tmp_path: Path) -> None:
    path = str(tmp_path / "csi.sock")
    async with DriverServer(Slow(), path), CsiChannel(path) as channel:
        info = await channel.call("GetPluginInfo", v1.GetPluginInfoRequest())
        assert (info.name, info.vendor_version) == ("slow.example.com", "1.0")
        assert (await channel.call("Probe", v1.ProbeRequest())).ready.value
        rpc = v1.NodeServiceCapability.RPC
        capabilities = await channel.call("NodeGetCapabilities", v1.NodeGetCapabilitiesRequest())
        assert [c.rpc.type for c in capabilities.capabilities] == [rpc.EXPAND_VOLUME]
        for method, request in [
            ("ControllerGetCapabilities", v1.ControllerGetCapabilitiesRequest()),
            ("NodeStageVolume", v1.NodeStageVolumeRequest()),
        ]:
            with pytest.raises(CallError) as caught:
                await channel.call(method, request)
            assert caught.value.code is Code.UNIMPLEMENTED


async def test_two_targets_run_side_by_side_and_the_volume_is_theirs_meanwhile(tmp_path: Path) -> None:
    driver, path = Slow(), str(tmp_path / "csi.sock")
    async with DriverServer(driver, path), CsiChannel(path) as channel, asyncio.TaskGroup() as group:
        group.create_task(channel.call("NodePublishVolume", publish("/a")))
        group.create_task(channel.call("NodePublishVolume", publish("/b")))
        assert {await driver.began.get(), await driver.began.get()} == {"/a", "/b"}
        with pytest.raises(CallError, match="another operation on v is in progress") as caught:
            await channel.call("NodeExpandVolume", EXPAND)
        assert caught.value.code is Code.ABORTED
        driver.go.set()
    assert sorted(driver.ended) == ["/a", "/b"]


async def test_work_outlives_its_caller(tmp_path: Path) -> None:
    driver, path = Slow(), str(tmp_path / "csi.sock")
    async with DriverServer(driver, path), CsiChannel(path) as channel:
        with pytest.raises(CallError) as caught:
            await channel.call("NodeExpandVolume", EXPAND, timeout=0.05)
        assert caught.value.code is Code.DEADLINE_EXCEEDED
        other = v1.NodeExpandVolumeRequest(volume_id="v", volume_path="/other")
        with pytest.raises(CallError) as caught:
            await channel.call("NodeExpandVolume", other)
        assert caught.value.code is Code.ABORTED
        driver.go.set()
    assert driver.ended == ["expand"]


async def test_an_equal_call_joins_the_one_under_way() -> None:
    driver = Slow()
    caller = Local(driver)
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(caller.call("NodeExpandVolume", EXPAND)) for _ in range(2)]
        await driver.began.get()
        driver.go.set()
    assert [c.result().capacity_bytes for c in calls] == [7, 7]
    assert driver.ended == ["expand"]


async def test_a_driver_that_falls_over_leaves_the_outcome_open(tmp_path: Path) -> None:
    path = str(tmp_path / "csi.sock")
    async with DriverServer(Slow(), path), CsiChannel(path) as channel:
        request = v1.NodeUnpublishVolumeRequest(volume_id="broken", target_path="/t")
        with pytest.raises(CallError, match="the disk is on fire") as caught:
            await channel.call("NodeUnpublishVolume", request)
        assert caught.value.code is Code.ABORTED
        request.volume_id = "missing"
        with pytest.raises(CallError, match="no such volume") as caught:
            await channel.call("NodeUnpublishVolume", request)
        assert caught.value.code is Code.NOT_FOUND


async def test_lines_go_to_the_container_that_serves_and_carry_no_secret(tmp_path: Path) -> None:
    driver, path, lines = Slow(), str(tmp_path / "csi.sock"), list[str]()
    driver.go.set()
    base_log.setup("debug", stream=io.StringIO())
    handler = logging.getLogger().handlers[-1]
    try:
        token = base_log.sink.set(lines.append)
        server = asyncio.ensure_future(serve(driver, path))
        base_log.sink.reset(token)
        async with CsiChannel(path) as channel:
            await channel.ready(5)
            await channel.call("NodePublishVolume", publish("/a", password="hunter2"))
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)
    finally:
        logging.getLogger().removeHandler(handler)
    assert any("NodePublishVolume: called" in line and "***stripped***" in line for line in lines)
    assert not any("hunter2" in line for line in lines)


async def test_shutdown_waits_for_calls_under_way(tmp_path: Path) -> None:
    driver, path = Slow(), str(tmp_path / "csi.sock")
    server = DriverServer(driver, path)
    await server.start()
    async with CsiChannel(path) as channel:
        call = asyncio.ensure_future(channel.call("NodePublishVolume", publish("/a")))
        await driver.began.get()
        closing = asyncio.ensure_future(server.close())
        await asyncio.sleep(0)
        with pytest.raises(CallError, match="shutting down") as caught:
            await channel.call("NodePublishVolume", publish("/b"))
        assert caught.value.code is Code.UNAVAILABLE
        driver.go.set()
        await call
        await closing
    assert driver.log == ["start", "stop"]
    assert os.listdir(tmp_path) == []


async def test_shutdown_does_not_wait_for_ever(tmp_path: Path) -> None:
    driver, path = Slow(), str(tmp_path / "csi.sock")
    server = DriverServer(driver, path, grace=0.01)
    await server.start()
    async with CsiChannel(path) as channel:
        call = asyncio.ensure_future(channel.call("NodePublishVolume", publish("/a")))
        await driver.began.get()
        await server.close()
        with pytest.raises(CallError) as caught:
            await call
        assert caught.value.code is Code.UNAVAILABLE
    assert driver.ended == []


@pytest.mark.virtual
async def test_in_memory_and_in_virtual_time() -> None:
    driver = Slow()
    caller = Local(driver)
    with pytest.raises(CallError) as caught:
        await caller.call("NodeExpandVolume", EXPAND, timeout=120)
    assert caught.value.code is Code.DEADLINE_EXCEEDED
    driver.go.set()
    assert (await caller.call("NodeExpandVolume", EXPAND)).capacity_bytes == 7
    with pytest.raises(CallError) as caught:
        await caller.call("CreateVolume", v1.CreateVolumeRequest())
    assert caught.value.code is Code.UNIMPLEMENTED
    await caller.close()
