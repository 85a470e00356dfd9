"""Calls over real sockets: replies, errors, deadlines, restarts of the driver, long paths."""

from __future__ import annotations

import asyncio
import gc
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from volplane.base import trace
from volplane.csi import v1
from volplane.csi.client import CsiChannel
from volplane.csi.outcome import CallError, Code
from volplane.csi.unix_server import UnixRpcServer


async def probe(request: v1.ProbeRequest, context: Any) -> v1.ProbeResponse:
    return v1.ProbeResponse(ready={"value": True})


async def refuse(request: Any, context: Any) -> Any:
    await context.abort(grpc.StatusCode.NOT_FOUND, f"volume {request.volume_id} is not there")


async def unavailable(request: Any, context: Any) -> Any:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "come back later")


async def stream_allocated(request: Any, context: Any) -> AsyncIterator[v1.GetMetadataAllocatedResponse]:
    for size in (1, 2):
        yield v1.GetMetadataAllocatedResponse(volume_capacity_bytes=size)


async def test_a_call_is_answered_and_traced(tmp_path: Path) -> None:
    path = str(tmp_path / "csi.sock")
    recorded = trace.start()
    async with UnixRpcServer(path, {"Probe": probe}), CsiChannel(path, component="attacher") as channel:
        await channel.ready(5)
        reply = await channel.call("Probe", v1.ProbeRequest(), subject="va/x")
        assert reply.ready.value
    assert [(s.component, s.step) for s in recorded.spans("va/x")] == [("attacher", "Probe")]


async def test_the_socket_is_ours_alone_and_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "csi.sock"
    async with UnixRpcServer(str(path), {"Probe": probe}):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert [p.name for p in path.parent.iterdir()] == ["csi.sock"]
    assert list(path.parent.iterdir()) == []


async def test_a_start_that_is_cancelled_leaves_no_socket_and_no_broken_task(tmp_path: Path) -> None:
    broken: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    for steps in range(12):  # as many turns of the loop as the start could need
        starting = asyncio.ensure_future(UnixRpcServer(str(tmp_path / "s.sock"), {"Probe": probe}).start())
        for _ in range(steps):
            await asyncio.sleep(0)
        if starting.done():
            break
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        assert os.listdir(tmp_path) == []
        del starting
        gc.collect()
    assert broken == []


async def test_errors_carry_code_and_text(tmp_path: Path) -> None:
    path = str(tmp_path / "csi.sock")
    async with UnixRpcServer(path, {"DeleteVolume": refuse}), CsiChannel(path) as channel:
        with pytest.raises(CallError, match="volume vol-1 is not there") as caught:
            await channel.call("DeleteVolume", v1.DeleteVolumeRequest(volume_id="vol-1"))
        assert caught.value.code is Code.NOT_FOUND
        with pytest.raises(CallError) as caught:
            await channel.call("NodeGetInfo", v1.NodeGetInfoRequest())
        assert caught.value.code is Code.UNIMPLEMENTED


async def test_a_slow_driver_meets_the_deadline(tmp_path: Path) -> None:
    async def sleepy(request: Any, context: Any) -> v1.ProbeResponse:
        await asyncio.sleep(60)
        return v1.ProbeResponse()

    path = str(tmp_path / "csi.sock")
    async with UnixRpcServer(path, {"Probe": sleepy}), CsiChannel(path) as channel:
        with pytest.raises(CallError) as caught:
            await channel.call("Probe", v1.ProbeRequest(), timeout=0.05)
        assert caught.value.code is Code.DEADLINE_EXCEEDED


async def test_a_restarted_driver_is_found_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "csi.sock")
    async with CsiChannel(path) as channel:
        for _ in range(3):
            async with UnixRpcServer(path, {"Probe": probe}):
                await channel.call("Probe", v1.ProbeRequest())
            for _ in range(3):
                with pytest.raises(CallError) as caught:
                    await channel.call("Probe", v1.ProbeRequest())
                assert caught.value.code is Code.UNAVAILABLE


async def test_an_unavailable_of_the_drivers_own_does_not_break_a_call_in_progress(tmp_path: Path) -> None:
    path = str(tmp_path / "csi.sock")
    reached, released = asyncio.Event(), asyncio.Event()

    async def slow_probe(request: v1.ProbeRequest, context: Any) -> v1.ProbeResponse:
        reached.set()
        await released.wait()
        return await probe(request, context)

    async with (
        UnixRpcServer(path, {"DeleteVolume": unavailable, "Probe": slow_probe}),
        CsiChannel(path) as channel,
    ):
        slow = asyncio.ensure_future(channel.call("Probe", v1.ProbeRequest()))
        await reached.wait()
        for _ in range(2):
            with pytest.raises(CallError, match="come back later"):
                await channel.call("DeleteVolume", v1.DeleteVolumeRequest(volume_id="v"))
        released.set()
        assert (await slow).ready.value


async def test_a_server_that_stops_finishes_its_calls(tmp_path: Path) -> None:
    path = str(tmp_path / "csi.sock")
    reached, released = asyncio.Event(), asyncio.Event()

    async def slow_probe(request: v1.ProbeRequest, context: Any) -> v1.ProbeResponse:
        reached.set()
        await released.wait()
        return await probe(request, context)

    server = UnixRpcServer(path, {"Probe": slow_probe})
    await server.start()
    async with CsiChannel(path) as channel:
        slow = asyncio.ensure_future(channel.call("Probe", v1.ProbeRequest()))
        await reached.wait()
        stopping = asyncio.ensure_future(server.close())
        for _ in range(20):  # turns of the loop: without a grace, the call is cancelled by then
            await asyncio.sleep(0)
        released.set()
        assert (await slow).ready.value
        await stopping


async def test_ready_waits_for_the_driver(tmp_path: Path) -> None:
    path = str(tmp_path / "later" / "csi.sock")
    async with CsiChannel(path) as channel:
        with pytest.raises(TimeoutError):
            await channel.ready(0.02)
        waiting = asyncio.ensure_future(channel.ready(10))
        async with UnixRpcServer(path, {"Probe": probe}):
            await waiting
            await channel.call("Probe", v1.ProbeRequest())


async def test_a_path_longer_than_the_kernel_takes(tmp_path: Path) -> None:
    path = str(tmp_path / ("x" * 80) / ("y" * 80) / "csi.sock")
    async with CsiChannel(path) as channel:
        with pytest.raises(CallError) as caught:
            await channel.call("Probe", v1.ProbeRequest())
        assert caught.value.code is Code.UNAVAILABLE
        async with UnixRpcServer(path, {"Probe": probe}):
            await channel.ready(5)
            await channel.call("Probe", v1.ProbeRequest())


async def test_an_old_server_does_not_take_the_new_ones_socket_away(tmp_path: Path) -> None:
    path = str(tmp_path / "csi.sock")
    old, new = UnixRpcServer(path, {"Probe": probe}), UnixRpcServer(path, {"Probe": probe})
    await old.start()
    await new.start()
    await old.close()
    async with CsiChannel(path) as channel:
        await channel.call("Probe", v1.ProbeRequest())
    await new.close()


async def test_streams(tmp_path: Path) -> None:
    path = str(tmp_path / "csi.sock")
    async with UnixRpcServer(path, {"GetMetadataAllocated": stream_allocated}), CsiChannel(path) as channel:
        request = v1.GetMetadataAllocatedRequest(snapshot_id="s")
        sizes = [r.volume_capacity_bytes async for r in channel.stream("GetMetadataAllocated", request)]
    assert sizes == [1, 2]
