"""Snapshot metadata: allocated blocks of a snapshot, and changed blocks between two."""

from __future__ import annotations

import os
from typing import Any

from google.protobuf.message import Message

from volplane.csi import v1
from volplane.csi.outcome import Code
from volplane.testing.case import CaseFailure, CaseTable, require
from volplane.testing.cases.snapshots_clones import snapshot
from volplane.testing.socket_env import BLOCK, SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

UNKNOWN = "volplane-no-such-snapshot"
NEAR, FAR = 8 << 20, 64 << 20  # positions of the data, far from each other
BLOCK_SIZE = 1 << 20


class BlockRanges:
    """The block ranges of a stream, with checks of their form."""

    def __init__(self, method: str, replies: list[Any], *, most: int = 0) -> None:
        if not replies:
            raise CaseFailure(f"{method} returned no message, although there is data")
        self.capacity: int = replies[0].volume_capacity_bytes
        self.blocks = [(b.byte_offset, b.size_bytes) for reply in replies for b in reply.block_metadata]
        kinds = {reply.block_metadata_type for reply in replies}
        require(
            len(kinds) == 1 and v1.BlockMetadataType.UNKNOWN not in kinds,
            f"all blocks must have one known type, not {sorted(map(v1.BlockMetadataType.Name, kinds))}",
            section="Metadata Format",
        )
        sizes = {size for _, size in self.blocks}
        fixed = kinds == {v1.BlockMetadataType.FIXED_LENGTH}
        require(
            not fixed or len(sizes) <= 1,
            f"FIXED_LENGTH, with sizes {sorted(sizes)}",
            section="Metadata Format",
        )
        said = {reply.volume_capacity_bytes for reply in replies}
        require(len(said) == 1 and self.capacity > 0, f"the volume's capacity is {sorted(said)}")
        largest = max(len(reply.block_metadata) for reply in replies)
        require(not most or largest <= most, f"max_results is {most}, a message has {largest}")
        self._in_order()

    def _in_order(self) -> None:
        end = 0
        for offset, size in self.blocks:
            require(size > 0, f"a block of {size} bytes at {offset}", section="Metadata Format")
            require(
                offset >= end,
                f"the block at {offset} follows one that ends at {end}",
                section="Metadata Format",
            )
            end = offset + size
        # The last block of fixed length may extend beyond the end.
        require(
            not self.blocks or self.blocks[-1][0] < self.capacity, f"a block beyond {self.capacity} bytes"
        )

    def covers(self, start: int, size: int, what: str) -> None:
        position = start
        for offset, length in self.blocks:
            if offset <= position < offset + length:
                position = offset + length
        require(
            position >= start + size,
            f"{what} at {start} to {start + size}, and is missing from {position} on",
        )


async def read_ranges(env: SocketEnv, method: str, request: Message) -> BlockRanges:
    replies = await env.controller.call_once(method, request)
    return BlockRanges(method, replies, most=getattr(request, "max_results", 0))


def allocated_ranges(env: SocketEnv, made: v1.Snapshot, **more: int) -> v1.GetMetadataAllocatedRequest:
    return v1.GetMetadataAllocatedRequest(snapshot_id=made.snapshot_id, secrets=env.secrets, **more)


async def _write_block(env: SocketEnv, volume: VolumeUnderTest, offset: int) -> None:
    await env.host.call(_write_at, volume.target(env.nodes[0]), env.random_data(BLOCK_SIZE), offset)


def _write_at(path: str, data: bytes, offset: int) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@case(
    "metadata/allocated",
    "GetMetadataAllocated",
    "The blocks contain all written data, ascending, without overlap, of one type.",
    "metadata",
    "snapshot",
    "create",
)
async def allocated_blocks(env: SocketEnv) -> None:
    volume = await env.create_and_publish(capability=BLOCK)
    for offset in (NEAR, FAR):
        await _write_block(env, volume, offset)
    found = await read_ranges(env, "GetMetadataAllocated", allocated_ranges(env, await snapshot(env, volume)))
    for offset in (NEAR, FAR):
        found.covers(offset, BLOCK_SIZE, "data is")


@case(
    "metadata/goes on",
    "Special considerations for processing a snapshot metadata gRPC stream",
    "From `starting_offset` on the blocks are the same; none ends before it, and no message has more than"
    " `max_results`.",
    "metadata",
    "snapshot",
    "create",
)
async def continue_from_offset(env: SocketEnv) -> None:
    volume = await env.create_and_publish(capability=BLOCK)
    for offset in (NEAR, FAR):
        await _write_block(env, volume, offset)
    made = await snapshot(env, volume)
    start = NEAR + 2 * BLOCK_SIZE
    found = await read_ranges(
        env, "GetMetadataAllocated", allocated_ranges(env, made, starting_offset=start, max_results=1)
    )
    found.covers(FAR, BLOCK_SIZE, "data is")
    early = [block for block in found.blocks if sum(block) <= start]
    require(not early, f"starting_offset is {start}, got {early}", section="GetMetadataAllocated")


@case(
    "metadata/delta",
    "GetMetadataDelta",
    "The blocks contain all data that was written between two snapshots.",
    "metadata",
    "snapshot",
    "create",
)
async def delta(env: SocketEnv) -> None:
    volume = await env.create_and_publish(capability=BLOCK)
    await _write_block(env, volume, NEAR)
    base = await snapshot(env, volume)
    for offset in (NEAR, FAR):
        await _write_block(env, volume, offset)
    target = await snapshot(env, volume)
    request = v1.GetMetadataDeltaRequest(
        base_snapshot_id=base.snapshot_id, target_snapshot_id=target.snapshot_id, secrets=env.secrets
    )
    found = await read_ranges(env, "GetMetadataDelta", request)
    for offset in (NEAR, FAR):
        found.covers(offset, BLOCK_SIZE, "what has changed is")


@case(
    "metadata/unknown snapshot",
    "GetMetadataAllocated Errors",
    "A snapshot that does not exist is NOT_FOUND.",
    "metadata",
)
async def unknown_snapshot(env: SocketEnv) -> None:
    request = v1.GetMetadataAllocatedRequest(snapshot_id=UNKNOWN, secrets=env.secrets)
    code = (Code.NOT_FOUND,)
    await env.expect_error(code, env.controller, "GetMetadataAllocated", request, "of an unknown snapshot")
    both = v1.GetMetadataDeltaRequest(
        base_snapshot_id=UNKNOWN, target_snapshot_id=f"{UNKNOWN}-2", secrets=env.secrets
    )
    await env.expect_error(code, env.controller, "GetMetadataDelta", both, "of unknown snapshots")


@case(
    "metadata/beyond the end",
    "GetMetadataAllocated Errors",
    "An offset that exceeds the volume is OUT_OF_RANGE.",
    "metadata",
    "snapshot",
    "create",
)
async def offset_beyond_end(env: SocketEnv) -> None:
    volume = await env.create_and_publish(capability=BLOCK)
    made = await snapshot(env, volume)
    request = allocated_ranges(env, made, starting_offset=1 << 60)
    await env.expect_error((Code.OUT_OF_RANGE,), env.controller, "GetMetadataAllocated", request, "at 2^60")
