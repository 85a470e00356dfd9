"""Disturbed calls: repeated, concurrent, with a short deadline, and into a killed process.

Each case is one lifecycle of a volume in which one call is disturbed. The lifecycle continues to its end, so
that wrong effects are found by later calls or by the data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import Message

from volplane.csi import v1
from volplane.csi.outcome import CallError, Code
from volplane.host.devices import loops
from volplane.host.mounts import read_table
from volplane.testing.call_audit import Inventory
from volplane.testing.case import CaseBody, CaseFailure, CaseTable, require
from volplane.testing.cases import groups, snapshots_clones
from volplane.testing.cases.controller import list_all_volumes
from volplane.testing.cases.expand import (
    create_growable,
    expand_in_controller,
    expand_on_node,
    skip_if_kernel_cannot_grow,
)
from volplane.testing.cases.modify import expect_modified
from volplane.testing.cases.snapshots_clones import snapshot
from volplane.testing.socket_env import CallWrapper, DriverSocket, SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

SEVERAL = 4  # concurrent calls
# The calls of a lifecycle, and the capabilities that each needs.
CALLS: dict[str, tuple[str, ...]] = {
    "CreateVolume": ("provision",),
    "ControllerPublishVolume": ("attach",),
    "NodeStageVolume": ("stage",),
    "NodePublishVolume": (),
    "CreateSnapshot": ("snapshot",),
    "ControllerExpandVolume": ("expand-controller", "expand-online"),
    "NodeExpandVolume": ("expand-node", "expand-online"),
    "ControllerModifyVolume": ("modify-parameters",),
    "CreateVolumeGroupSnapshot": ("group-snapshot",),
    "GetVolumeGroupSnapshot": ("group-snapshot",),
    "DeleteVolumeGroupSnapshot": ("group-snapshot",),
    "NodeUnpublishVolume": (),
    "NodeUnstageVolume": ("stage",),
    "ControllerUnpublishVolume": ("attach",),
    "DeleteSnapshot": ("snapshot",),
    "DeleteVolume": ("provision",),
}
SNAPSHOTS = ("CreateSnapshot", "DeleteSnapshot")


async def run_lifecycle(env: SocketEnv, method: str) -> None:
    """Run a lifecycle from create to delete, without the parts that do not need the method."""
    node = env.nodes[0]
    volume = await env.create(**({"capability": create_growable(env)} if "Expand" in method else {}))
    path = await volume.attach_stage_publish(node)
    data = env.random_data()
    await volume.write(path, data)
    if "Group" in method:
        await _run_group_lifecycle(env, volume)
    if method in SNAPSHOTS:
        made = await snapshot(env, volume)
    if "Modify" in method:
        await expect_modified(env, volume)
    if "Expand" in method and (await expand_in_controller(env, volume, 2 * env.size)):
        await expand_on_node(env, volume, node, 2 * env.size)
    await env.expect_data(volume, path, data, f"after {method} was disturbed")
    await volume.unpublish_unstage_detach(node)
    await env.expect_data(
        volume,
        await volume.attach_stage_publish(node),
        data,
        f"after {method} was disturbed, on the next node",
    )
    await volume.unpublish_unstage_detach(node)
    if method in SNAPSHOTS:
        request = v1.DeleteSnapshotRequest(snapshot_id=made.snapshot_id, secrets=env.secrets)
        await env.controller.call("DeleteSnapshot", request)
        env.snapshots.remove(made.snapshot_id)
    gone = volume.id
    await volume.delete()
    if env.capabilities.has("list"):
        require(
            gone not in await list_all_volumes(env),
            f"{gone} is deleted and still listed",
            section="DeleteVolume",
        )


async def _run_group_lifecycle(env: SocketEnv, volume: VolumeUnderTest) -> None:
    """Create, get and delete a group snapshot of the volume and another one."""
    other = await env.create()
    group = await groups.group_snapshot(env, [volume, other])
    reply = await env.controller.call("GetVolumeGroupSnapshot", groups.get_request(env, group))
    found, made = (sorted(one.snapshot_id for one in g.snapshots) for g in (reply.group_snapshot, group))
    require(found == made, f"a group of {made} has {found}", section="GetVolumeGroupSnapshot")
    await env.controller.call("DeleteVolumeGroupSnapshot", groups.delete_request(env, group))
    groups.untrack_group(env, group)
    await other.delete()
    await env.expect_error(
        (Code.NOT_FOUND,),
        env.controller,
        "GetVolumeGroupSnapshot",
        groups.get_request(env, group),
        "of a group that was deleted",
    )


async def take_inventory(env: SocketEnv) -> Inventory:
    """Mounts and devices on the nodes, and what the driver lists."""
    mounts, devices = await env.host.call(_find_mounts_and_devices, env)
    volumes = await list_all_volumes(env) if env.capabilities.has("list") else ()
    snapshots = (
        await snapshots_clones.list_all_snapshots(env) if env.capabilities.has("list-snapshots") else ()
    )
    return Inventory(frozenset(mounts), frozenset(devices), frozenset(volumes), frozenset(snapshots))


def _find_mounts_and_devices(env: SocketEnv) -> tuple[set[str], set[str]]:
    table, place = read_table(), f"{env.directory}/"
    mounts = {entry.target for node in env.nodes for entry in table.under(str(node.root))}
    return mounts, {f"{device} ({file})" for device, file in loops().items() if file.startswith(place)}


def expect_same_answer(method: str, first: Message, second: Message) -> None:
    """Raise CaseFailure if two answers to the same call differ."""
    found, again = _comparable(method, first), _comparable(method, second)
    if found != again:
        raise CaseFailure(f"{method} called twice with the same arguments returned {found}, then {again}")


def _comparable(method: str, reply: Any) -> str:
    match method:
        case "CreateSnapshot":
            copy = v1.CreateSnapshotResponse.FromString(reply.SerializeToString())
            copy.snapshot.ClearField("ready_to_use")
            copy.snapshot.ClearField("size_bytes")  # set when it is ready
            return _one_line(copy)
        case "CreateVolumeGroupSnapshot" | "GetVolumeGroupSnapshot":
            return str((reply.group_snapshot.group_snapshot_id, sorted(_group_members(reply.group_snapshot))))
        case "ControllerExpandVolume" | "NodeExpandVolume":
            return f"capacity_bytes: {reply.capacity_bytes}"  # node_expansion_required may have changed
        case "GetCapacity" | "NodeGetVolumeStats" | "Probe":
            return "an answer"  # values change over time
        case "NodeGetInfo":
            return str(reply.node_id)  # max_volumes_per_node may change
        case "ListVolumes" | "ListSnapshots":
            return str(sorted(_entry_ids(reply)))
        case _ if method.endswith("GetCapabilities") or method == "GetPluginCapabilities":
            return str(sorted(map(_one_line, reply.capabilities)))
    return _one_line(reply)


def _one_line(reply: object) -> str:
    return " ".join(str(reply).split()) or "nothing"


def _entry_ids(reply: Any) -> Iterator[str]:
    for entry in reply.entries:
        yield entry.volume.volume_id if hasattr(entry, "volume") else entry.snapshot.snapshot_id


def _group_members(group: v1.VolumeGroupSnapshot) -> list[tuple[str, str, str]]:
    """Its snapshots, without fields that are set when they are ready."""
    return [(s.source_volume_id, s.snapshot_id, str(s.creation_time).strip()) for s in group.snapshots]


async def call_again(remote: DriverSocket, method: str, request: Message, when: str) -> Any:
    try:
        return await remote.call_until_settled(method, request)
    except CallError as error:
        raise CaseFailure(f"{method} {when}: {error.code.name} ({error.message}), expected OK") from None


def call_twice(env: SocketEnv) -> CallWrapper:
    async def around(remote: DriverSocket, method: str, request: Message) -> Any:
        first = await remote.call_until_settled(method, request)
        second = await call_again(remote, method, request, "called again with the same arguments")
        expect_same_answer(method, first, second)
        return second

    return around


def call_concurrently(env: SocketEnv) -> CallWrapper:
    async def around(remote: DriverSocket, method: str, request: Message) -> Any:
        calls = [remote.call_once(method, request) for _ in range(SEVERAL)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        if method == "NodeExpandVolume" and all(isinstance(answer, CallError) for answer in answers):
            await skip_if_kernel_cannot_grow(env, request.volume_path)  # type: ignore[attr-defined]
        for answer in answers:
            if isinstance(answer, CallError):
                require(
                    answer.code is Code.ABORTED,
                    f"{SEVERAL} concurrent calls of {method}: {answer.code.name} ({answer.message}),"
                    " expected OK or ABORTED",
                )
            elif isinstance(answer, BaseException):
                raise answer
        last = await call_again(remote, method, request, f"after {SEVERAL} concurrent calls")
        for answer in answers:
            if not isinstance(answer, BaseException):
                expect_same_answer(method, answer, last)
        return last

    return around


def call_with_short_deadline(env: SocketEnv) -> CallWrapper:
    async def around(remote: DriverSocket, method: str, request: Message) -> Any:
        first = None
        try:
            first = await remote.call_once(method, request, timeout=env.random.uniform(0.001, 0.02))
        except CallError as error:
            require(
                error.code in (Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.UNAVAILABLE),
                f"{method} with a short deadline: {error.code.name} ({error.message})",
            )
        last = await call_again(remote, method, request, "repeated after its caller gave up")
        if first is not None:
            expect_same_answer(method, first, last)
        return last

    return around


def kill_during(env: SocketEnv) -> CallWrapper:
    """Kill the driver at a random moment."""

    async def around(remote: DriverSocket, method: str, request: Message) -> Any:
        call = asyncio.ensure_future(remote.call_once(method, request))
        await asyncio.wait({call}, timeout=env.random.uniform(0.0, 0.03))
        await remote.instance.kill()
        first = (await asyncio.gather(call, return_exceptions=True))[0]
        await remote.instance.start()
        last = await call_again(remote, method, request, "repeated after the driver was killed during it")
        if isinstance(first, Message):
            expect_same_answer(method, first, last)
        return last

    return around


def kill_after(env: SocketEnv) -> CallWrapper:
    async def around(remote: DriverSocket, method: str, request: Message) -> Any:
        first = await remote.call_until_settled(method, request)
        await remote.instance.restart()
        last = await call_again(remote, method, request, "repeated after the driver was killed and restarted")
        expect_same_answer(method, first, last)
        return last

    return around


def _lifecycle_with(disturb: Callable[[SocketEnv], CallWrapper], method: str) -> CaseBody:
    async def body(env: SocketEnv) -> None:
        before = await take_inventory(env)
        env.around[method] = disturb(env)
        await run_lifecycle(env, method)
        require(
            method not in env.around, f"{method} was never called, although the driver has its capability"
        )
        for wrong in (await take_inventory(env)).leftovers_since(before):
            require(False, wrong.what, section=wrong.section)

    return body


for _method, _needs in CALLS.items():
    case.add(
        f"twice/{_method}",
        _method,
        "A repeated call with the same arguments is OK, with the same answer.",
        _lifecycle_with(call_twice, _method),
        "create",
        *_needs,
    )
for _method, _needs in CALLS.items():
    case.add(
        f"at once/{_method}",
        "Concurrency",
        "Of several concurrent identical calls each is OK or ABORTED, and the effect happens once.",
        _lifecycle_with(call_concurrently, _method),
        "create",
        *_needs,
    )
for _method, _needs in CALLS.items():
    case.add(
        f"given up/{_method}",
        "Timeouts",
        "After a passed deadline the repeated call succeeds.",
        _lifecycle_with(call_with_short_deadline, _method),
        "create",
        *_needs,
    )
for _method, _needs in CALLS.items():
    case.add(
        f"killed during/{_method}",
        _method,
        "A driver that is killed during the call and restarted succeeds when the call is repeated.",
        _lifecycle_with(kill_during, _method),
        "create",
        *_needs,
    )
for _method, _needs in CALLS.items():
    case.add(
        f"killed after/{_method}",
        _method,
        "The effect of a call that returned OK survives a kill and restart of the driver.",
        _lifecycle_with(kill_after, _method),
        "create",
        *_needs,
    )
