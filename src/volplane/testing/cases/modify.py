"""Modify the mutable parameters of a volume."""

from __future__ import annotations

from collections.abc import Mapping

from volplane.csi import v1
from volplane.csi.outcome import Code
from volplane.testing.case import CaseTable, require
from volplane.testing.cases.controller import UNKNOWN
from volplane.testing.socket_env import WRITER, SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

NONE = {"volplane.example.com/no-such-parameter": "1"}


def modify_request(
    env: SocketEnv, volume: str, parameters: Mapping[str, str]
) -> v1.ControllerModifyVolumeRequest:
    return v1.ControllerModifyVolumeRequest(
        volume_id=volume, mutable_parameters=parameters, secrets=env.secrets
    )


async def expect_modified(env: SocketEnv, volume: VolumeUnderTest) -> None:
    await env.controller.call("ControllerModifyVolume", modify_request(env, volume.id, env.mutable))


@case(
    "modify/in use",
    "ControllerModifyVolume",
    "A volume in use is modified, also repeatedly, and keeps its data.",
    "modify-parameters",
    "create",
)
async def in_use(env: SocketEnv) -> None:
    (volume, written), node = await env.create_with_data(), env.nodes[0]
    for _ in range(2):
        await expect_modified(env, volume)
    await env.expect_data(volume, volume.target(node), written, "after the volume was modified in use")
    await volume.unpublish_unstage_detach(node)
    await env.expect_data(
        volume, await volume.attach_stage_publish(node), written, "after it was modified, when it came back"
    )


@case(
    "modify/from the start",
    "CreateVolume",
    "A volume is created with mutable parameters; the repeated request returns the same volume.",
    "modify-parameters",
    "create",
)
async def from_the_start(env: SocketEnv) -> None:
    request = env.create_request(env.new_name())
    request.mutable_parameters.update(env.mutable)
    volume = VolumeUnderTest(env, request, WRITER)
    env.volumes.append(volume)
    await volume.create()
    first = volume.id
    await volume.create()
    if volume.id != first:
        env.volumes.append(_stray(env, volume, first))
    require(volume.id == first, f"CreateVolume called twice returned {first}, then {volume.id}")


def _stray(env: SocketEnv, volume: VolumeUnderTest, id: str) -> VolumeUnderTest:
    made = VolumeUnderTest(env, volume.request, volume.capability)
    made.made = v1.Volume(volume_id=id)
    return made


@case(
    "modify/unknown parameter",
    "ControllerModifyVolume Errors",
    "An unknown parameter is INVALID_ARGUMENT.",
    "modify",
    "create",
)
async def unknown_parameter(env: SocketEnv) -> None:
    volume = await env.create()
    await env.expect_error(
        (Code.INVALID_ARGUMENT,),
        env.controller,
        "ControllerModifyVolume",
        modify_request(env, volume.id, NONE),
        "with an unknown parameter",
    )


@case(
    "modify/unknown volume",
    "ControllerModifyVolume Errors",
    "A volume that does not exist is NOT_FOUND.",
    "modify-parameters",
)
async def unknown_volume(env: SocketEnv) -> None:
    await env.expect_error(
        (Code.NOT_FOUND,),
        env.controller,
        "ControllerModifyVolume",
        modify_request(env, UNKNOWN, env.mutable),
        "of an unknown volume",
    )
