"""Calls in the wrong order.

The specification does not say whether such a call fails or succeeds. But if it returns OK, it must have its
effect, and calls in the right order must succeed afterwards, with the volume's data.
"""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.message import Message

from volplane.csi import v1
from volplane.csi.outcome import CallError
from volplane.testing.case import CaseBody, CaseFailure, CaseTable, require
from volplane.testing.socket_env import DriverSocket, SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()


async def _call(remote: DriverSocket, method: str, request: Message) -> bool:
    """Whether the call is OK: here both are right."""
    try:
        await remote.call_once(method, request)
    except CallError:
        return False
    return True


@case(
    "order/publish before stage",
    "NodePublishVolume",
    "Publishing a volume that is not staged fails, or the target has the volume and"
    " not the empty directory where it would be staged.",
    "create",
    "stage",
)
async def before_stage(env: SocketEnv) -> None:
    (volume, written), node = await env.create_with_data(), env.nodes[0]
    await volume.unpublish_unstage_detach(node)
    await volume.attach(node)
    target = volume.target(node)
    volume.targets[target] = node
    if await _call(node, "NodePublishVolume", volume.mount_request(node, target)):
        found = await volume.read(target)
        require(found == written, f"OK, and {target} shows {len(found)} bytes of the {len(written)} written")
    await _repeat_in_order(env, volume, written, "NodePublishVolume came before NodeStageVolume")


@case(
    "order/stage before attach",
    "NodeStageVolume",
    "Staging a volume that is not attached may fail; after the attach it succeeds.",
    "create",
    "attach",
    "stage",
)
async def before_attach(env: SocketEnv) -> None:
    (volume, written), node = await env.create_with_data(), env.nodes[0]
    await volume.unpublish_unstage_detach(node)
    request = volume.stage_request(node)
    volume.staged[request.staging_target_path] = node
    await _call(node, "NodeStageVolume", request)
    await _repeat_in_order(env, volume, written, "NodeStageVolume came before ControllerPublishVolume")


def _called_too_early(
    method: str,
    after: str,
    ask: Callable[[SocketEnv, VolumeUnderTest, DriverSocket], tuple[DriverSocket, Message]],
) -> CaseBody:
    async def body(env: SocketEnv) -> None:
        (volume, written), node = await env.create_with_data(), env.nodes[0]
        remote, request = ask(env, volume, node)
        if not await _call(remote, method, request):
            await env.expect_data(volume, volume.target(node), written, f"while {method} was refused")
        await _repeat_in_order(env, volume, written, f"{method} came before {after}")

    return body


async def _repeat_in_order(env: SocketEnv, volume: VolumeUnderTest, written: bytes, what: str) -> None:
    """Take the volume off the node and bring it back, in the right order."""
    node = env.nodes[0]
    try:
        await volume.unpublish_unstage_detach(node)
        path = await volume.attach_stage_publish(node)
    except CallError as error:
        raise CaseFailure(f"{what}; afterwards in the right order: {error}") from None
    await env.expect_data(volume, path, written, f"after {what}")


case.add(
    "order/unstage before unpublish",
    "NodeUnstageVolume",
    "Unstaging a published volume may fail; in the right order it succeeds, and the data is kept.",
    _called_too_early(
        "NodeUnstageVolume",
        "NodeUnpublishVolume",
        lambda env, volume, node: (
            node,
            v1.NodeUnstageVolumeRequest(volume_id=volume.id, staging_target_path=volume.staging(node)),
        ),
    ),
    "create",
    "stage",
)
case.add(
    "order/detach before unstage",
    "ControllerUnpublishVolume",
    "Detaching a staged volume may fail; in the right order it succeeds, and the data is kept.",
    _called_too_early(
        "ControllerUnpublishVolume",
        "NodeUnstageVolume",
        lambda env, volume, node: (
            env.controller,
            v1.ControllerUnpublishVolumeRequest(volume_id=volume.id, node_id=node.id, secrets=env.secrets),
        ),
    ),
    "create",
    "attach",
)
