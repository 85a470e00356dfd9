"""Read-only calls: repeated, concurrent, with a short deadline, and into a killed process.

One lifecycle has them all. Values that change by themselves (capacity, statistics) are not compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from google.protobuf.message import Message
from msgspec import Struct

from volplane.csi import v1
from volplane.testing.case import CaseBody, CaseTable
from volplane.testing.cases import faults
from volplane.testing.cases.snapshots_clones import snapshot
from volplane.testing.socket_env import CallWrapper, DriverSocket, SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()


class ReadOnlyCall(Struct, frozen=True):
    remote: DriverSocket
    method: str
    request: Message

    async def call(self) -> Any:
        return await self.remote.call_once(self.method, self.request)


def _read_only_calls(
    env: SocketEnv, volume: VolumeUnderTest, target: str, cut: str
) -> Iterator[ReadOnlyCall]:
    """The read-only calls that the driver supports, for a published volume and (`cut`) its snapshot."""
    controller, node = env.controller, env.nodes[0]
    own: tuple[tuple[str, Message], ...] = (
        ("GetPluginInfo", v1.GetPluginInfoRequest()),
        ("GetPluginCapabilities", v1.GetPluginCapabilitiesRequest()),
        ("Probe", v1.ProbeRequest()),
        ("NodeGetCapabilities", v1.NodeGetCapabilitiesRequest()),
        ("NodeGetInfo", v1.NodeGetInfoRequest()),
    )
    for method, request in own:
        yield ReadOnlyCall(node, method, request)
    if env.capabilities.has("stats"):
        stats = v1.NodeGetVolumeStatsRequest(
            volume_id=volume.id, volume_path=target, staging_target_path=volume.staging(node)
        )
        yield ReadOnlyCall(node, "NodeGetVolumeStats", stats)
    validate = v1.ValidateVolumeCapabilitiesRequest(
        volume_id=volume.id,
        volume_context=volume.made.volume_context,
        volume_capabilities=[volume.capability],
        parameters=env.parameters,
        secrets=env.secrets,
    )
    for need, method, asked in (
        ("controller", "ControllerGetCapabilities", v1.ControllerGetCapabilitiesRequest()),
        ("create", "ValidateVolumeCapabilities", validate),
        ("list", "ListVolumes", v1.ListVolumesRequest()),
        ("get", "ControllerGetVolume", v1.ControllerGetVolumeRequest(volume_id=volume.id)),
        ("capacity", "GetCapacity", v1.GetCapacityRequest(parameters=env.parameters)),
        ("list-snapshots", "ListSnapshots", v1.ListSnapshotsRequest(secrets=env.secrets)),
        ("group-snapshot", "GroupControllerGetCapabilities", v1.GroupControllerGetCapabilitiesRequest()),
    ):
        if env.capabilities.has(need):
            yield ReadOnlyCall(controller, method, asked)
    if cut and env.capabilities.has("get-snapshot"):
        wanted = v1.GetSnapshotRequest(snapshot_id=cut, secrets=env.secrets)
        yield ReadOnlyCall(controller, "GetSnapshot", wanted)


async def _disturb_each(
    env: SocketEnv, questions: list[ReadOnlyCall], disturb: Callable[[SocketEnv], CallWrapper]
) -> None:
    for one in questions:
        await disturb(env)(one.remote, one.method, one.request)


async def _kill_during(env: SocketEnv, questions: list[ReadOnlyCall]) -> None:
    """Kill the driver while all calls are in flight."""
    asked = [asyncio.ensure_future(one.call()) for one in questions]
    await asyncio.wait(asked, timeout=env.random.uniform(0.0, 0.03))
    await asyncio.gather(*(instance.kill() for instance in env.instances))
    first = await asyncio.gather(*asked, return_exceptions=True)
    await asyncio.gather(*(instance.start() for instance in env.instances))
    await _expect_same_answers(questions, first, "repeated after the driver was killed during it")


async def _kill_after(env: SocketEnv, questions: list[ReadOnlyCall]) -> None:
    first = [await one.call() for one in questions]
    await asyncio.gather(*(instance.restart() for instance in env.instances))
    await _expect_same_answers(questions, first, "repeated after the driver was killed and restarted")


async def _expect_same_answers(questions: list[ReadOnlyCall], first: list[Any], when: str) -> None:
    for one, before in zip(questions, first, strict=True):
        last = await faults.call_again(one.remote, one.method, one.request, when)
        if isinstance(before, Message):
            faults.expect_same_answer(one.method, before, last)


def _read_only_with(disturb: Callable[[SocketEnv, list[ReadOnlyCall]], Awaitable[None]]) -> CaseBody:
    async def body(env: SocketEnv) -> None:
        node = env.nodes[0]
        volume = await env.create_and_publish()
        cut = (await snapshot(env, volume)).snapshot_id if env.capabilities.has("snapshot") else ""
        target = volume.target(node)
        data = env.random_data()
        await volume.write(target, data)
        questions = list(_read_only_calls(env, volume, target, cut))
        await disturb(env, questions)
        await env.expect_data(volume, target, data, "after read-only calls")

    return body


case.add(
    "twice/questions",
    "RPC Interface",
    "A repeated read-only call returns the same answer.",
    _read_only_with(lambda env, questions: _disturb_each(env, questions, faults.call_twice)),
    "create",
)
case.add(
    "at once/questions",
    "Concurrency",
    "Concurrent read-only calls return the same answer.",
    _read_only_with(lambda env, questions: _disturb_each(env, questions, faults.call_concurrently)),
    "create",
)
case.add(
    "given up/questions",
    "Timeouts",
    "A read-only call succeeds after a passed deadline.",
    _read_only_with(lambda env, questions: _disturb_each(env, questions, faults.call_with_short_deadline)),
    "create",
)
case.add(
    "killed during/questions",
    "Supervised Lifecycle Management",
    "A driver that is killed during read-only calls and restarted answers them.",
    _read_only_with(_kill_during),
    "create",
)
case.add(
    "killed after/questions",
    "Supervised Lifecycle Management",
    "Read-only calls return the same answer after a kill and restart of the driver.",
    _read_only_with(_kill_after),
    "create",
)
