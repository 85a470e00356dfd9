"""Which blocks of a snapshot hold data, and which have changed between two: told as a stream."""

from __future__ import annotations

import os
from typing import Any

from google.protobuf.message import Message

from volplane.csi import v1
from volplane.csi.outcome import Code
from volplane.testing.bench import BLOCK, Bench
from volplane.testing.case import Broken, Table, demand
from volplane.testing.cases.copies import snapshot
from volplane.testing.volume import Volume

case = Table()

UNKNOWN = "volplane-no-such-snapshot"
NEAR, FAR = 8 << 20, 64 << 20  # where it is written, far from each other
PIECE = 1 << 20


class Ranges:
    """What a stream told, and whether it may tell so."""

    def __init__(self, method: str, replies: list[Any], *, most: int = 0) -> None:
        if not replies:
            raise Broken(f"{method} ends without a message, though there is data")
        self.capacity: int = replies[0].volume_capacity_bytes
        self.blocks = [(b.byte_offset, b.size_bytes) for reply in replies for b in reply.block_metadata]
        kinds = {reply.block_metadata_type for reply in replies}
        demand(
            len(kinds) == 1 and v1.BlockMetadataType.UNKNOWN not in kinds,
            f"the style of the blocks is one and known, not {sorted(map(v1.BlockMetadataType.Name, kinds))}",
            section="Metadata Format",
        )
        sizes = {size for _, size in self.blocks}
        fixed = kinds == {v1.BlockMetadataType.FIXED_LENGTH}
        demand(
            not fixed or len(sizes) <= 1,
            f"FIXED_LENGTH, with sizes {sorted(sizes)}",
            section="Metadata Format",
        )
        said = {reply.volume_capacity_bytes for reply in replies}
        demand(len(said) == 1 and self.capacity > 0, f"the volume's capacity is {sorted(said)}")
        largest = max(len(reply.block_metadata) for reply in replies)
        demand(
            not most or largest <= most, f"{most} a message are the most that is asked for, {largest} came"
        )
        self._in_order()

    def _in_order(self) -> None:
        end = 0
        for offset, size in self.blocks:
            demand(size > 0, f"a block of {size} bytes at {offset}", section="Metadata Format")
            demand(
                offset >= end,
                f"the block at {offset} comes after one that ends at {end}",
                section="Metadata Format",
            )
            end = offset + size
        # The last block of a fixed length may reach beyond the end.
        demand(not self.blocks or self.blocks[-1][0] < self.capacity, f"a block beyond {self.capacity} bytes")

    def covers(self, start: int, size: int, what: str) -> None:
        position = start
        for offset, length in self.blocks:
            if offset <= position < offset + length:
                position = offset + length
        demand(
            position >= start + size,
            f"{what} at {start} to {start + size}, and is not told from {position} on",
        )


async def told(bench: Bench, method: str, request: Message) -> Ranges:
    replies = await bench.controller.plain(method, request)
    return Ranges(method, replies, most=getattr(request, "max_results", 0))


def allocated(bench: Bench, made: v1.Snapshot, **more: int) -> v1.GetMetadataAllocatedRequest:
    return v1.GetMetadataAllocatedRequest(snapshot_id=made.snapshot_id, secrets=bench.secrets, **more)


async def _written(bench: Bench, volume: Volume, offset: int) -> None:
    await bench.host.call(_put, volume.target(bench.nodes[0]), bench.payload(PIECE), offset)


def _put(path: str, data: bytes, offset: int) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@case(
    "metadata/allocated",
    "GetMetadataAllocated",
    "All that was written to the volume is in the blocks: ascending, without overlap, in one style.",
    "metadata",
    "snapshot",
    "create",
)
async def allocated_blocks(bench: Bench) -> None:
    volume = await bench.published(capability=BLOCK)
    for offset in (NEAR, FAR):
        await _written(bench, volume, offset)
    found = await told(bench, "GetMetadataAllocated", allocated(bench, await snapshot(bench, volume)))
    for offset in (NEAR, FAR):
        found.covers(offset, PIECE, "data is")


@case(
    "metadata/goes on",
    "Special considerations for processing a snapshot metadata gRPC stream",
    "From `starting_offset` on the same is told; no block ends before it, and no message has more than"
    " `max_results`.",
    "metadata",
    "snapshot",
    "create",
)
async def goes_on(bench: Bench) -> None:
    volume = await bench.published(capability=BLOCK)
    for offset in (NEAR, FAR):
        await _written(bench, volume, offset)
    made = await snapshot(bench, volume)
    start = NEAR + 2 * PIECE
    found = await told(
        bench, "GetMetadataAllocated", allocated(bench, made, starting_offset=start, max_results=1)
    )
    found.covers(FAR, PIECE, "data is")
    early = [block for block in found.blocks if sum(block) <= start]
    demand(not early, f"from {start} on was asked for, told is {early}", section="GetMetadataAllocated")


@case(
    "metadata/delta",
    "GetMetadataDelta",
    "All that was written between two snapshots is in the blocks.",
    "metadata",
    "snapshot",
    "create",
)
async def delta(bench: Bench) -> None:
    volume = await bench.published(capability=BLOCK)
    await _written(bench, volume, NEAR)
    base = await snapshot(bench, volume)
    for offset in (NEAR, FAR):
        await _written(bench, volume, offset)
    target = await snapshot(bench, volume)
    request = v1.GetMetadataDeltaRequest(
        base_snapshot_id=base.snapshot_id, target_snapshot_id=target.snapshot_id, secrets=bench.secrets
    )
    found = await told(bench, "GetMetadataDelta", request)
    for offset in (NEAR, FAR):
        found.covers(offset, PIECE, "what has changed is")


@case(
    "metadata/unknown snapshot",
    "GetMetadataAllocated Errors",
    "A snapshot that does not exist is NOT_FOUND.",
    "metadata",
)
async def unknown(bench: Bench) -> None:
    request = v1.GetMetadataAllocatedRequest(snapshot_id=UNKNOWN, secrets=bench.secrets)
    code = (Code.NOT_FOUND,)
    await bench.refused(code, bench.controller, "GetMetadataAllocated", request, "of an unknown snapshot")
    both = v1.GetMetadataDeltaRequest(
        base_snapshot_id=UNKNOWN, target_snapshot_id=f"{UNKNOWN}-2", secrets=bench.secrets
    )
    await bench.refused(code, bench.controller, "GetMetadataDelta", both, "of unknown snapshots")


@case(
    "metadata/beyond the end",
    "GetMetadataAllocated Errors",
    "An offset that exceeds the volume is OUT_OF_RANGE.",
    "metadata",
    "snapshot",
    "create",
)
async def beyond(bench: Bench) -> None:
    volume = await bench.published(capability=BLOCK)
    made = await snapshot(bench, volume)
    request = allocated(bench, made, starting_offset=1 << 60)
    await bench.refused((Code.OUT_OF_RANGE,), bench.controller, "GetMetadataAllocated", request, "at 2^60")
