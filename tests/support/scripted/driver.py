"""The driver: it stores volumes as a real one does (idempotent by name, one node at a time).

Its features are chosen per test; each is a class of the calls that belong to it. A second node for a
published volume is refused and counted in `violations`.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from tests.support.scripted.outcomes import Break, Delay, Fail, Hold, Lose, Outcome, decode, encode
from tests.support.scripted.state import State
from volplane import sdk
from volplane.base import clock
from volplane.csi import v1
from volplane.csi.outcome import CallError, Code

NAME = "test.csi.example.com"
ZONE = "topology.test.csi.example.com/zone"


class ScriptedDriver(sdk.Driver):
    """Creates and deletes volumes. `driver(*features)` adds more capabilities."""

    name, version = NAME, "1.0"

    def __init__(self, name: str = NAME, directory: Path | None = None) -> None:
        super().__init__(name)
        self.state = State(directory)
        self.calls: list[tuple[str, Any]] = []
        self._call_times: list[tuple[str, float]] = []  # the time of each call
        # The loop's clock does not advance within an iteration: right for callers in the same loop only.
        self.clock: Callable[[], float] = clock.now
        self.violations = 0
        self.answers: int | None = None  # reported size of new volumes, if not the requested one
        self.zones: tuple[str, ...] = ()  # topology of new volumes; (): the first preferred one
        self.forgets_source = False  # answers without content_source
        self.available: int | Mapping[str, int] = 1 << 40  # for GetCapacity; by zone
        self.largest = 0  # maximum_volume_size; 0: not reported
        self.ready_after = 0  # answers with ready_to_use false before a snapshot is ready
        self.node_expansion = True  # ControllerExpandVolume sets node_expansion_required
        self.cut: Callable[[], Awaitable[None]] | None = None  # breaks the connections, if there are any
        self._script: dict[str, deque[Outcome]] = defaultdict(deque)
        self._always: dict[str, Outcome] = {}
        self._polls: dict[str, int] = defaultdict(int)

    # --- for the test

    @property
    def volumes(self) -> dict[str, v1.Volume]:
        return self.state.volumes

    @property
    def snapshots(self) -> dict[str, v1.Snapshot]:
        return self.state.snapshots

    @property
    def publications(self) -> dict[str, set[str]]:
        return self.state.published

    def script(self, method: str, *outcomes: Outcome) -> None:
        """Set the outcomes of the next calls of the method."""
        self._script[method].extend(outcomes)

    def always(self, method: str, outcome: Outcome | None) -> None:
        """Set the outcome of all calls without a script; None: succeed again."""
        if outcome is None:
            self._always.pop(method, None)
        else:
            self._always[method] = outcome

    def requests_of(self, method: str) -> list[Any]:
        return [request for name, request in self.calls if name == method]

    def pauses(self, method: str) -> list[float]:
        """Seconds between consecutive calls of the method, by the driver's clock."""
        return [later - earlier for earlier, later in pairwise(self.call_times(method))]

    def call_times(self, method: str) -> list[float]:
        return [moment for name, moment in self._call_times if name == method]

    # --- calls

    async def _do(self, method: str, request: Message, work: Callable[[], Message]) -> Any:
        self._record(method, request)
        outcome = self._next(method)
        if isinstance(outcome, Delay):
            await asyncio.sleep(outcome.seconds)
        elif isinstance(outcome, Hold):
            await outcome.wait()
            outcome = outcome.then
        if isinstance(outcome, Fail):
            raise CallError(outcome.code, outcome.message)
        reply = work()
        self.state.save()
        if isinstance(outcome, Lose):
            raise CallError(outcome.code, outcome.message)
        if isinstance(outcome, Break):
            if self.cut is not None:
                await self.cut()
            raise CallError(Code.UNAVAILABLE, "the connection broke")
        return reply

    def _record(self, method: str, request: Message) -> None:
        self.calls.append((method, request))
        self._call_times.append((method, self.clock()))
        if self.state.directory is not None:
            line = json.dumps({"method": method, "request": json_format.MessageToDict(request)})
            with (self.state.directory / "calls").open("a") as file:
                file.write(line + "\n")

    def _next(self, method: str) -> Outcome | None:
        if self._script[method]:
            return self._script[method].popleft()
        if self.state.directory is not None:
            file = self.state.directory / f"script-{method}"
            if file.exists() and (left := decode(file.read_bytes())):
                file.write_bytes(encode(left[1:]))
                return left[0]
        return self._always.get(method)

    # --- volumes

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        def work() -> v1.CreateVolumeResponse:
            volume = self.volumes.get(request.name)
            if volume is None:
                self._check_source(request)
                volume = self.volumes[request.name] = self._create(request)
                self.state.asked[request.name] = request
            elif not _same(self.state.asked[request.name], request):
                raise CallError(Code.ALREADY_EXISTS, f"{request.name} was made from other arguments")
            return v1.CreateVolumeResponse(volume=volume)

        reply: v1.CreateVolumeResponse = await self._do("CreateVolume", request, work)
        return reply

    def _check_source(self, request: v1.CreateVolumeRequest) -> None:
        source = request.volume_content_source
        kind = source.WhichOneof("type")
        if kind == "snapshot" and self.state.snapshot(source.snapshot.snapshot_id) is None:
            raise CallError(Code.NOT_FOUND, f"no snapshot {source.snapshot.snapshot_id}")
        if kind == "volume" and self.state.by_handle(source.volume.volume_id) is None:
            raise CallError(Code.NOT_FOUND, f"no volume {source.volume.volume_id}")

    def _create(self, request: v1.CreateVolumeRequest) -> v1.Volume:
        asked = request.capacity_range.required_bytes
        volume = v1.Volume(
            volume_id=f"vol-{request.name}",
            capacity_bytes=asked if self.answers is None else self.answers,
            volume_context={"made": "here"},
        )
        if request.HasField("volume_content_source") and not self.forgets_source:
            volume.content_source.CopyFrom(request.volume_content_source)
        if self.zones:
            volume.accessible_topology.extend(v1.Topology(segments={ZONE: zone}) for zone in self.zones)
        elif request.accessibility_requirements.preferred:
            volume.accessible_topology.append(request.accessibility_requirements.preferred[0])
        return volume

    async def delete_volume(self, request: v1.DeleteVolumeRequest) -> v1.DeleteVolumeResponse:
        def work() -> v1.DeleteVolumeResponse:
            for name, volume in list(self.volumes.items()):
                if volume.volume_id == request.volume_id:
                    del self.volumes[name], self.state.asked[name]
            return v1.DeleteVolumeResponse()

        reply: v1.DeleteVolumeResponse = await self._do("DeleteVolume", request, work)
        return reply

    def volume(self, handle: str) -> v1.Volume:
        if (found := self.state.by_handle(handle)) is None:
            raise CallError(Code.NOT_FOUND, f"no volume {handle}")
        return found


def _same(one: v1.CreateVolumeRequest, other: v1.CreateVolumeRequest) -> bool:
    """Whether two requests are for the same volume; their topology may differ."""
    one, other = _copy(one), _copy(other)
    for request in (one, other):
        request.ClearField("accessibility_requirements")
        request.ClearField("secrets")
    return bool(one == other)


def _copy(request: v1.CreateVolumeRequest) -> v1.CreateVolumeRequest:
    copy = v1.CreateVolumeRequest()
    copy.CopyFrom(request)
    return copy


def driver(*features: str, name: str = NAME, directory: Path | None = None) -> Any:
    """A driver with these features: see `features.FEATURES`."""
    from tests.support.scripted import features as known  # it builds on this file

    return known.driver_class(features)(name, directory)


def messages(requests: Iterable[Message]) -> list[dict[str, Any]]:
    """Requests as plain data, for readable comparisons."""
    return [json_format.MessageToDict(r, preserving_proto_field_name=True) for r in requests]
