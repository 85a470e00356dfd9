"""Sizes that drivers tend to round wrong: no whole number of gibibytes, tight limits, more than 32 bits."""

from __future__ import annotations

from volplane.csi import v1
from volplane.csi.outcome import CallError, Code
from volplane.testing.case import CaseTable, NotSupported, require
from volplane.testing.cases.arguments import is_disk
from volplane.testing.cases.expand import expand_in_controller, expand_request
from volplane.testing.socket_env import BLOCK, MIB, WRITER, SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

ODD = MIB + 4096  # bytes beside a round size
TIGHT = 4096  # bytes between the required size and the limit
BEYOND_32_BITS = (4 << 30) + 128 * MIB
TOO_LARGE = (Code.OUT_OF_RANGE, Code.RESOURCE_EXHAUSTED)


@case(
    "provision/odd size",
    "CreateVolume",
    "A volume is not smaller than a required size that is no round number.",
    "provision",
)
async def odd_size(env: SocketEnv) -> None:
    size = env.size + ODD
    volume = await env.create(size=size)
    known = volume.made.capacity_bytes
    require(not known or known >= size, f"{size} bytes are required, the volume has {known}")
    try:
        device = await env.create_and_publish(size=size, capability=BLOCK)
    except NotSupported:
        return
    found = await env.host.size_of(device.target(env.nodes[0]))
    require(found >= size, f"{size} bytes are required, the device has {found}")


@case(
    "provision/tight limit",
    "CreateVolume",
    "A volume is as large as required and not larger than `limit_bytes`, or the request is OUT_OF_RANGE.",
    "provision",
)
async def tight_limit(env: SocketEnv) -> None:
    low, high = env.size + ODD, env.size + ODD + TIGHT
    volume = VolumeUnderTest(env, env.create_request(env.new_name(), size=low), WRITER)
    volume.request.capacity_range.limit_bytes = high
    env.volumes.append(volume)
    try:
        made = await volume.create()
    except CallError as error:
        require(
            error.code is Code.OUT_OF_RANGE,
            f"CreateVolume with {low} to {high} bytes: {error}, expected OK or OUT_OF_RANGE",
            section="CreateVolume Errors",
        )
        return
    known = made.capacity_bytes
    require(not known or low <= known <= high, f"{low} to {high} bytes are required, the volume has {known}")


@case(
    "provision/more than 4 GiB",
    "CreateVolume",
    "A size of more than 32 bits is not cut off.",
    "provision",
)
async def beyond_32_bits(env: SocketEnv) -> None:
    size = max(env.size, BEYOND_32_BITS)
    try:
        volume = await env.create_and_publish(size=size)
    except CallError as error:
        if error.code in TOO_LARGE:
            raise NotSupported(f"it has no volumes of {size} bytes: {error}") from None
        raise
    known = volume.made.capacity_bytes
    require(not known or known >= size, f"{size} bytes are required, the volume has {known}")
    path = volume.target(env.nodes[0])
    entry = (await env.host.mounts()).at(path)
    if entry is not None and is_disk(entry):
        found = (await env.host.stats(path)).capacity
        require(found >= size * 9 // 10, f"{size} bytes are required, its file system has {found}")


@case(
    "expand/odd size",
    "ControllerExpandVolume",
    "A volume is as large as required after OK, also if that is no round number, and not larger than"
    " `limit_bytes`.",
    "create",
    "expand-controller",
)
async def expand_odd_size(env: SocketEnv) -> None:
    volume = await env.create()
    low = 2 * env.size + ODD
    await expand_in_controller(env, volume, low)
    again = expand_request(env, volume, low + env.size)
    again.capacity_range.limit_bytes = high = low + env.size + TIGHT
    try:
        reply: v1.ControllerExpandVolumeResponse = await env.controller.call("ControllerExpandVolume", again)
    except CallError as error:
        require(
            error.code is Code.OUT_OF_RANGE,
            f"ControllerExpandVolume to {low + env.size} to {high} bytes: {error}, expected OK or"
            " OUT_OF_RANGE",
            section="ControllerExpandVolume Errors",
        )
        return
    require(
        low + env.size <= reply.capacity_bytes <= high,
        f"{low + env.size} to {high} bytes are required, the volume has {reply.capacity_bytes}",
    )
