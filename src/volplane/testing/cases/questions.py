"""What a driver is only asked: each question twice, at once, too briefly, and into a dying process.

One life has them all. What changes by itself between two answers (room, statistics) is not compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from google.protobuf.message import Message
from msgspec import Struct

from volplane.csi import v1
from volplane.testing.bench import Around, Bench, Remote
from volplane.testing.case import Body, Table
from volplane.testing.cases import disturbed
from volplane.testing.cases.copies import snapshot
from volplane.testing.volume import Volume

case = Table()


class Question(Struct, frozen=True):
    remote: Remote
    method: str
    request: Message

    async def ask(self) -> Any:
        return await self.remote.plain(self.method, self.request)


def _questions(bench: Bench, volume: Volume, target: str, cut: str) -> Iterator[Question]:
    """About a published volume and (`cut`) a snapshot of it, as far as the driver promises answers."""
    controller, node = bench.controller, bench.nodes[0]
    own: tuple[tuple[str, Message], ...] = (
        ("GetPluginInfo", v1.GetPluginInfoRequest()),
        ("GetPluginCapabilities", v1.GetPluginCapabilitiesRequest()),
        ("Probe", v1.ProbeRequest()),
        ("NodeGetCapabilities", v1.NodeGetCapabilitiesRequest()),
        ("NodeGetInfo", v1.NodeGetInfoRequest()),
    )
    for method, request in own:
        yield Question(node, method, request)
    if bench.promises.has("stats"):
        stats = v1.NodeGetVolumeStatsRequest(
            volume_id=volume.id, volume_path=target, staging_target_path=volume.staging(node)
        )
        yield Question(node, "NodeGetVolumeStats", stats)
    validate = v1.ValidateVolumeCapabilitiesRequest(
        volume_id=volume.id,
        volume_context=volume.made.volume_context,
        volume_capabilities=[volume.capability],
        parameters=bench.parameters,
        secrets=bench.secrets,
    )
    for need, method, asked in (
        ("controller", "ControllerGetCapabilities", v1.ControllerGetCapabilitiesRequest()),
        ("create", "ValidateVolumeCapabilities", validate),
        ("list", "ListVolumes", v1.ListVolumesRequest()),
        ("get", "ControllerGetVolume", v1.ControllerGetVolumeRequest(volume_id=volume.id)),
        ("capacity", "GetCapacity", v1.GetCapacityRequest(parameters=bench.parameters)),
        ("list-snapshots", "ListSnapshots", v1.ListSnapshotsRequest(secrets=bench.secrets)),
        ("group-snapshot", "GroupControllerGetCapabilities", v1.GroupControllerGetCapabilitiesRequest()),
    ):
        if bench.promises.has(need):
            yield Question(controller, method, asked)
    if cut and bench.promises.has("get-snapshot"):
        wanted = v1.GetSnapshotRequest(snapshot_id=cut, secrets=bench.secrets)
        yield Question(controller, "GetSnapshot", wanted)


async def _each(bench: Bench, questions: list[Question], disturb: Callable[[Bench], Around]) -> None:
    for one in questions:
        await disturb(bench)(one.remote, one.method, one.request)


async def _during(bench: Bench, questions: list[Question]) -> None:
    """All are under way when the driver dies."""
    asked = [asyncio.ensure_future(one.ask()) for one in questions]
    await asyncio.wait(asked, timeout=bench.random.uniform(0.0, 0.03))
    await asyncio.gather(*(instance.kill() for instance in bench.instances))
    first = await asyncio.gather(*asked, return_exceptions=True)
    await asyncio.gather(*(instance.start() for instance in bench.instances))
    await _answered_alike(questions, first, "repeated after the driver was killed during it")


async def _after(bench: Bench, questions: list[Question]) -> None:
    first = [await one.ask() for one in questions]
    await asyncio.gather(*(instance.restart() for instance in bench.instances))
    await _answered_alike(questions, first, "repeated after the driver was killed and started")


async def _answered_alike(questions: list[Question], first: list[Any], when: str) -> None:
    for one, before in zip(questions, first, strict=True):
        last = await disturbed.repeated(one.remote, one.method, one.request, when)
        if isinstance(before, Message):
            disturbed.alike(one.method, before, last)


def _with(disturb: Callable[[Bench, list[Question]], Awaitable[None]]) -> Body:
    async def body(bench: Bench) -> None:
        node = bench.nodes[0]
        volume = await bench.published()
        cut = (await snapshot(bench, volume)).snapshot_id if bench.promises.has("snapshot") else ""
        target = volume.target(node)
        data = bench.payload()
        await volume.write(target, data)
        questions = list(_questions(bench, volume, target, cut))
        await disturb(bench, questions)
        await bench.same(volume, target, data, "after the driver was asked about it")

    return body


case.add(
    "twice/questions",
    "RPC Interface",
    "What a driver is asked a second time it answers as before.",
    _with(lambda bench, questions: _each(bench, questions, disturbed.twice)),
    "create",
)
case.add(
    "at once/questions",
    "Concurrency",
    "A question that is asked several times at once is answered each time, and alike.",
    _with(lambda bench, questions: _each(bench, questions, disturbed.at_once)),
    "create",
)
case.add(
    "given up/questions",
    "Timeouts",
    "A question that was given up is answered when it is asked again.",
    _with(lambda bench, questions: _each(bench, questions, disturbed.briefly)),
    "create",
)
case.add(
    "killed during/questions",
    "Supervised Lifecycle Management",
    "A driver that is killed while it is asked, and started again, answers.",
    _with(_during),
    "create",
)
case.add(
    "killed after/questions",
    "Supervised Lifecycle Management",
    "What a driver has answered it answers again when it was killed and started since.",
    _with(_after),
    "create",
)
