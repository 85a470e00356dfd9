"""Calls that answer "still in progress": how long they are repeated."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.message import Message

from tests.support import sample_driver
from volplane.cluster import external_driver
from volplane.csi import v1
from volplane.csi.outcome import CallError, Code
from volplane.testing import socket_env
from volplane.testing.socket_env import SETTLE_AGAIN, SETTLE_TIMEOUT, DriverSocket, SocketEnv

pytestmark = pytest.mark.virtual


class AbortingSocket(DriverSocket):
    """Whose driver answers every call with ABORTED."""

    lasts = math.inf  # seconds

    async def call_once(self, method: str, request: Message, *, timeout: float = 60.0) -> Any:
        assert isinstance(request, v1.CreateVolumeRequest)
        if asyncio.get_running_loop().time() > self.lasts:
            return v1.CreateVolumeResponse()
        raise CallError(Code.ABORTED, f"could not create {request.name}: wrong type")


@pytest.fixture
def socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AbortingSocket:
    virtual = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
    monkeypatch.setattr(socket_env, "time", virtual)
    env = SocketEnv(external_driver.from_command(sample_driver.command_line()), tmp_path)
    return AbortingSocket(env.controller.instance, env)


async def seconds_of(socket: AbortingSocket, name: str) -> float:
    loop = asyncio.get_running_loop()
    start = loop.time()
    with pytest.raises(CallError):
        await socket.call("CreateVolume", v1.CreateVolumeRequest(name=name))
    return loop.time() - start


async def test_an_answer_that_never_changes_is_waited_for_once(socket: AbortingSocket) -> None:
    assert await seconds_of(socket, "pvc-45b53bd9a5594aee") > SETTLE_TIMEOUT
    # Another volume, the same answer: it is not a call in progress.
    assert SETTLE_AGAIN < await seconds_of(socket, "pvc-9d1cc1b1d541d398") < SETTLE_TIMEOUT / 2


async def test_an_answer_that_did_change_has_the_whole_time_again(socket: AbortingSocket) -> None:
    assert await seconds_of(socket, "pvc-45b53bd9a5594aee") > SETTLE_TIMEOUT
    socket.lasts = asyncio.get_running_loop().time() + SETTLE_AGAIN / 2
    await socket.call("CreateVolume", v1.CreateVolumeRequest(name="pvc-9d1cc1b1d541d398"))
    socket.lasts = math.inf
    assert await seconds_of(socket, "pvc-2a7f53bd9a55d541") > SETTLE_TIMEOUT
