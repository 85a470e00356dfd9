"""Attach and detach volumes."""

from __future__ import annotations

import asyncio
import time

from volplane.csi import v1
from volplane.csi.outcome import CallError, Code
from volplane.testing.case import CaseTable, NotSupported, require
from volplane.testing.cases.controller import UNKNOWN
from volplane.testing.socket_env import DriverSocket, SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

MOST_VOLUMES = 32  # highest limit of a node that is tested


@case(
    "attach/one node only",
    "ControllerPublishVolume Errors",
    "A single-node volume that is attached to one node cannot be attached to another: FAILED_PRECONDITION.",
    "attach",
    "create",
    "nodes",
)
async def one_node_only(env: SocketEnv) -> None:
    volume = await env.create()
    second = env.require_second_node(volume)
    await volume.attach(env.nodes[0])
    request = volume.publish_request(second)
    volume.attached[second.id] = (second, {})  # in case the call succeeds
    await env.expect_error(
        (Code.FAILED_PRECONDITION,),
        env.controller,
        "ControllerPublishVolume",
        request,
        f"to {second.id}, while the volume is attached to {env.nodes[0].id}",
    )
    volume.attached.pop(second.id)


@case(
    "attach/unknown volume",
    "ControllerPublishVolume Errors",
    "A volume that does not exist is NOT_FOUND.",
    "attach",
)
async def unknown_volume(env: SocketEnv) -> None:
    request = v1.ControllerPublishVolumeRequest(
        volume_id=UNKNOWN,
        node_id=env.nodes[0].id,
        volume_capability=env.create_request("x").volume_capabilities[0],
        secrets=env.secrets,
    )
    await env.expect_error(
        (Code.NOT_FOUND,), env.controller, "ControllerPublishVolume", request, "of an unknown volume"
    )


@case(
    "attach/unknown node",
    "ControllerPublishVolume Errors",
    "A node that does not exist is NOT_FOUND.",
    "attach",
    "create",
)
async def unknown_node(env: SocketEnv) -> None:
    volume = await env.create()
    request = volume.publish_request(env.nodes[0])
    request.node_id = "volplane-no-such-node"
    await env.expect_error(
        (Code.NOT_FOUND,), env.controller, "ControllerPublishVolume", request, "to an unknown node"
    )


@case(
    "attach/detach what is not attached",
    "ControllerUnpublishVolume",
    "Detaching a volume that is not attached to the node is OK.",
    "attach",
    "create",
)
async def detach_idle(env: SocketEnv) -> None:
    volume = await env.create()
    await volume.detach(env.nodes[0])


@case(
    "attach/other access",
    "ControllerPublishVolume Errors",
    "A volume that is attached with another `readonly` value is ALREADY_EXISTS.",
    "attach",
    "attach-readonly",
    "create",
)
async def other_access(env: SocketEnv) -> None:
    volume = await env.create()
    await volume.attach(env.nodes[0])
    request = volume.publish_request(env.nodes[0], readonly=True)
    await env.expect_error(
        (Code.ALREADY_EXISTS,),
        env.controller,
        "ControllerPublishVolume",
        request,
        "read-only after read-write",
    )


@case(
    "attach/limit",
    "ControllerPublishVolume Errors",
    "A node accepts as many volumes as its limit; one more is RESOURCE_EXHAUSTED.",
    "attach",
    "create",
)
async def limit(env: SocketEnv) -> None:
    node, _, more = await _fill_node(env)
    request = more.publish_request(node)
    await env.expect_error(
        (Code.RESOURCE_EXHAUSTED,),
        env.controller,
        "ControllerPublishVolume",
        request,
        "past the node's limit",
    )


@case(
    "attach/limit is given back",
    "ControllerUnpublishVolume",
    "A node at its limit accepts another volume after one was detached.",
    "attach",
    "create",
)
async def detach_frees_slot(env: SocketEnv) -> None:
    node, attached, more = await _fill_node(env)
    await attached.detach(node)
    await more.attach(node)


async def _fill_node(env: SocketEnv) -> tuple[DriverSocket, VolumeUnderTest, VolumeUnderTest]:
    """Fill a node to its limit; returns it, one of its volumes, and a detached volume."""
    node = env.nodes[-1]
    if not 0 < node.most <= MOST_VOLUMES:
        raise NotSupported(
            f"the node's limit is {node.most or 'none'}; only limits up to {MOST_VOLUMES} are tested"
        )
    began, volumes = time.monotonic(), list[VolumeUnderTest]()
    for number in range(1, node.most + 1):
        volumes.append(await env.create(node=node))
        await volumes[-1].attach(node)
        # They are detached and deleted afterwards, too.
        if (time.monotonic() - began) / number * (node.most + 1) > env.case_timeout / 2:
            raise NotSupported(f"{node.most} volumes, the node's limit, take too long to attach them")
    return node, volumes[0], await env.create(node=node)


@case(
    "attach/moves",
    "Volume Lifecycle",
    "A volume that is moved to another node keeps its data.",
    "create",
    "nodes",
)
async def moves(env: SocketEnv) -> None:
    volume = await env.create()
    second = env.require_second_node(volume)
    data = env.random_data()
    for node, other in ((env.nodes[0], second), (second, env.nodes[0])):
        path = await volume.attach_stage_publish(node)
        if node is second:
            await env.expect_data(
                volume, path, data, f"after the move to {node.id}", section="NodeStageVolume"
            )
        await volume.write(path, data)
        await volume.unpublish_unstage_detach(node)
        require(other.id != node.id, "two nodes have one id")


@case(
    "attach/both ways at once",
    "Concurrency",
    "Concurrent attach and detach of one volume are each OK or ABORTED; afterwards both work.",
    "attach",
    "create",
)
async def both_ways(env: SocketEnv) -> None:
    volume, node = await env.create(), env.nodes[0]
    await volume.attach(node)
    detach = v1.ControllerUnpublishVolumeRequest(volume_id=volume.id, node_id=node.id, secrets=env.secrets)
    answers = await asyncio.gather(
        env.controller.call_once("ControllerPublishVolume", volume.publish_request(node)),
        env.controller.call_once("ControllerUnpublishVolume", detach),
        return_exceptions=True,
    )
    for answer in answers:
        if isinstance(answer, CallError):
            require(answer.code is Code.ABORTED, f"at the same time: {answer}")
        elif isinstance(answer, BaseException):
            raise answer
    await env.controller.call_until_settled("ControllerUnpublishVolume", detach)
    reply = await env.controller.call_until_settled("ControllerPublishVolume", volume.publish_request(node))
    volume.attached[node.id] = (node, dict(reply.publish_context))
    await volume.stage(node)
    await volume.publish(node)
