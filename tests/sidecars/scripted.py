"""A driver that does as the test says: wait, fail with any code, lose its reply, and write everything down.

Volumes and publications are kept as a real driver keeps them: idempotent by name, one node at a time. A
second node for a published volume is refused and counted.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from msgspec import Struct

from volplane import sdk
from volplane.csi import v1
from volplane.csi.client import Channel
from volplane.csi.outcome import CallError, Code

NAME = "test.csi.example.com"
ZONE = "topology.test.csi.example.com/zone"


class Fail(Struct, frozen=True):
    """Answer with this code, without doing anything."""

    code: Code
    message: str = "as scripted"


class Lose(Struct, frozen=True):
    """Do the work; the caller hears another story."""

    code: Code = Code.DEADLINE_EXCEEDED


class Hold(Struct, frozen=True):
    """Do the work when the gate opens."""

    gate: asyncio.Event


Outcome = Fail | Lose | Hold


class Scripted(sdk.Driver):
    name, version = NAME, "1.0"

    def __init__(self, name: str = NAME) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, Any]] = []
        self.volumes: dict[str, v1.Volume] = {}  # by name
        self.published: dict[str, set[str]] = defaultdict(set)  # volume → nodes
        self.violations = 0
        self.zones: tuple[str, ...] = ()  # where new volumes end up; () is nowhere in particular
        self.capacity: int | None = None  # what is answered, where that is not what was asked
        self._script: dict[str, deque[Outcome]] = defaultdict(deque)

    def script(self, method: str, *outcomes: Outcome) -> None:
        self._script[method].extend(outcomes)

    def called(self, method: str) -> list[Any]:
        return [request for name, request in self.calls if name == method]

    async def _do(self, method: str, request: Message, work: Callable[[], Awaitable[Any]]) -> Any:
        self.calls.append((method, request))
        outcome = self._script[method].popleft() if self._script[method] else None
        match outcome:
            case Fail(code, message):
                raise CallError(code, message)
            case Hold(gate):
                await gate.wait()
            case Lose(code):
                await work()
                raise CallError(code, "the reply was lost")
        return await work()

    # --- controller

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        async def work() -> v1.CreateVolumeResponse:
            size = request.capacity_range.required_bytes if self.capacity is None else self.capacity
            volume = self.volumes.get(request.name) or v1.Volume(
                volume_id=f"vol-{request.name}",
                capacity_bytes=size,
                volume_context={"made": "here"},
                accessible_topology=[v1.Topology(segments={ZONE: zone}) for zone in self.zones],
            )
            self.volumes[request.name] = volume
            return v1.CreateVolumeResponse(volume=volume)

        reply: v1.CreateVolumeResponse = await self._do("CreateVolume", request, work)
        return reply

    async def delete_volume(self, request: v1.DeleteVolumeRequest) -> v1.DeleteVolumeResponse:
        async def work() -> v1.DeleteVolumeResponse:
            self.volumes = {k: v for k, v in self.volumes.items() if v.volume_id != request.volume_id}
            return v1.DeleteVolumeResponse()

        reply: v1.DeleteVolumeResponse = await self._do("DeleteVolume", request, work)
        return reply


class Attaching(Scripted):
    """With ControllerPublishVolume."""

    claims = frozenset({"PUBLISH_READONLY"})

    async def controller_publish_volume(
        self, request: v1.ControllerPublishVolumeRequest
    ) -> v1.ControllerPublishVolumeResponse:
        async def work() -> v1.ControllerPublishVolumeResponse:
            nodes = self.published[request.volume_id]
            if nodes - {request.node_id}:
                self.violations += 1
                raise CallError(Code.FAILED_PRECONDITION, f"published to {', '.join(sorted(nodes))}")
            nodes.add(request.node_id)
            return v1.ControllerPublishVolumeResponse(publish_context={"devicePath": "/dev/xvdba"})

        reply: v1.ControllerPublishVolumeResponse = await self._do("ControllerPublishVolume", request, work)
        return reply

    async def controller_unpublish_volume(
        self, request: v1.ControllerUnpublishVolumeRequest
    ) -> v1.ControllerUnpublishVolumeResponse:
        async def work() -> v1.ControllerUnpublishVolumeResponse:
            self.published[request.volume_id].discard(request.node_id)
            return v1.ControllerUnpublishVolumeResponse()

        reply: v1.ControllerUnpublishVolumeResponse = await self._do(
            "ControllerUnpublishVolume", request, work
        )
        return reply


class Listing(Attaching):
    """And with a list of what is published where, one volume a page."""

    claims = frozenset({"PUBLISH_READONLY", "LIST_VOLUMES_PUBLISHED_NODES"})

    async def list_volumes(self, request: v1.ListVolumesRequest) -> v1.ListVolumesResponse:
        self.calls.append(("ListVolumes", request))
        known = sorted(self.published)
        at = int(request.starting_token or 0)
        status = v1.ListVolumesResponse.VolumeStatus
        entries = [
            v1.ListVolumesResponse.Entry(
                volume=v1.Volume(volume_id=handle),
                status=status(published_node_ids=sorted(self.published[handle])),
            )
            for handle in known[at : at + 1]
        ]
        return v1.ListVolumesResponse(entries=entries, next_token=str(at + 1) if at + 1 < len(known) else "")


class Plain(Attaching):
    """Cannot publish read-only."""

    claims = frozenset()


class Placing(Attaching):
    """Has its volumes in zones."""

    claims = frozenset({"VOLUME_ACCESSIBILITY_CONSTRAINTS"})


@asynccontextmanager
async def on_socket(driver: sdk.Driver, component: str) -> AsyncIterator[Channel]:
    """The driver behind a real Unix socket, and a channel to it."""
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "csi.sock")
        async with sdk.Server(driver, path, grace=0.1), Channel(path, component=component) as channel:
            yield channel
