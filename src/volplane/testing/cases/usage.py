"""NodeGetVolumeStats: the numbers follow what is written, and a volume that is being unpublished is safe."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable
from typing import Any

from volplane.base.backoff import Backoff, Failures
from volplane.csi import v1
from volplane.csi.outcome import CallError, Code
from volplane.testing.case import CaseFailure, CaseTable, NotSupported, require
from volplane.testing.cases.node import stats_are_plausible
from volplane.testing.socket_env import BLOCK, DriverSocket, SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

WRITTEN = 32 << 20  # bytes
FILES = 64
SHARE = 2  # at least half of what is written must be counted: others may use the file system, too
ATTEMPTS = 3  # others may free as much space meanwhile
WAIT_TIMEOUT = 2.0  # seconds until changed numbers must be right
CACHE_PATIENCE = 10.0  # seconds until they must change
POLL = Backoff(0.05, 1.0)
ROUNDS, SEVERAL = 4, 4  # of stats and unpublish at the same time
Usage = dict[int, v1.VolumeUsage]  # by unit
BYTES, INODES = v1.VolumeUsage.BYTES, v1.VolumeUsage.INODES
# Answers for a target that is being unpublished.
GONE = (Code.NOT_FOUND, Code.ABORTED, Code.FAILED_PRECONDITION, Code.INTERNAL)


async def _usage(node: DriverSocket, volume: VolumeUnderTest) -> Usage:
    reply = await stats_are_plausible(node, volume, volume.target(node))
    return {usage.unit: usage for usage in reply.usage}


@case(
    "stats/follow what is written",
    "NodeGetVolumeStats",
    "When files are written, used bytes and inodes grow by about as much, and available ones shrink.",
    "stats",
    "provision",  # a given volume has another size, and is never emptied
)
async def follow_writes(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(), env.nodes[0]
    for attempt in range(ATTEMPTS):
        if not (wrong := await _write_and_compare(env, volume, node, f"file-{attempt}")):
            break
    else:
        raise CaseFailure(wrong)
    least = env.size * 9 // 10 - (64 << 20)
    total = (await _usage(node, volume))[BYTES].total
    require(total >= least, f"the volume has {env.size} bytes, reported are {total} in all")


async def _write_and_compare(env: SocketEnv, volume: VolumeUnderTest, node: DriverSocket, prefix: str) -> str:
    """Write new files; returns which number does not follow. Raises NotSupported if none changes."""
    before = await _usage(node, volume)
    if BYTES not in before:
        raise NotSupported("NodeGetVolumeStats reports no bytes")
    await env.host.call(_write_files, volume.target(node), env.random_data(WRITTEN), prefix)
    began, tries = time.monotonic(), Failures(POLL)
    while wrong := _wrong_changes(before, now := await _usage(node, volume)):
        unchanged = _same(before, now)  # from a cache, which is allowed
        if time.monotonic() - began > (CACHE_PATIENCE if unchanged else WAIT_TIMEOUT):
            if unchanged:
                raise NotSupported(f"NodeGetVolumeStats reports the same numbers for {CACHE_PATIENCE:g} s")
            return wrong
        await asyncio.sleep(tries.next_delay())
    return ""


def _write_files(directory: str, data: bytes, prefix: str) -> None:
    step = len(data) // FILES
    for number in range(FILES):
        with open(os.path.join(directory, f"{prefix}-{number}"), "wb") as file:
            file.write(data[number * step : (number + 1) * step])
            os.fsync(file.fileno())


def _wrong_changes(before: Usage, now: Usage) -> str:
    """Which number does not follow; "" if all do."""
    for unit, written, what in ((BYTES, WRITTEN, "bytes"), (INODES, FILES, "inodes")):
        if unit not in before or unit not in now or not before[unit].total:
            continue
        old, new = before[unit], now[unit]
        if new.used - old.used < written // SHARE:
            return f"{written} {what} were written, and used went from {old.used} to {new.used} {what}"
        has_available = old.available or new.available  # optional
        if has_available and unit == BYTES and old.available - new.available < written // SHARE:
            return f"{written} bytes were written, and available went from {old.available} to {new.available}"
    return ""


def _same(before: Usage, now: Usage) -> bool:
    return all(
        (before[unit].used, before[unit].available) == (usage.used, usage.available)
        for unit, usage in now.items()
        if unit in before
    )


@case(
    "stats/during unpublish",
    "NodeUnpublishVolume",
    "NodeGetVolumeStats during NodeUnpublishVolume reports this volume or fails; the target is gone"
    " afterwards.",
    "stats",
    "create",
)
async def during_unpublish(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(), env.nodes[0]
    target = volume.target(node)
    total = {unit: usage.total for unit, usage in (await _usage(node, volume)).items()}
    request = v1.NodeGetVolumeStatsRequest(
        volume_id=volume.id, volume_path=target, staging_target_path=volume.staging(node)
    )
    for number in range(ROUNDS):
        asked: list[Awaitable[Any]] = [node.call_once("NodeGetVolumeStats", request) for _ in range(SEVERAL)]
        first = number % 2 * SEVERAL  # unpublish is the first call or the last
        answers: list[Any] = await asyncio.gather(
            *asked[:first], volume.unpublish(node), *asked[first:], return_exceptions=True
        )
        unpublished, stats = answers.pop(first), answers
        for answer in stats:
            _expect_stats(answer, total)
        # The stats may have kept the target busy: then the call is repeated, as a kubelet does.
        if isinstance(unpublished, CallError):
            await volume.unpublish(node)
        elif isinstance(unpublished, BaseException):
            raise unpublished
        require(not await env.host.is_mount(target), f"{target} is still mounted after NodeUnpublishVolume")
        require(
            not await env.host.call(os.path.lexists, target),
            f"{target} is there again: NodeGetVolumeStats has created it during NodeUnpublishVolume",
            section="NodeGetVolumeStats",
        )
        await volume.publish(node)


def _expect_stats(answer: object, total: dict[int, int]) -> None:
    section = "NodeGetVolumeStats Errors"
    if isinstance(answer, CallError):
        require(
            answer.code in GONE,
            f"NodeGetVolumeStats during NodeUnpublishVolume: {answer}, expected OK or NOT_FOUND",
            section=section,
        )
    elif isinstance(answer, BaseException):
        raise answer
    else:
        assert isinstance(answer, v1.NodeGetVolumeStatsResponse)
        for usage in answer.usage:
            known = total.get(usage.unit, usage.total)
            require(
                abs(known - usage.total) <= max(known, usage.total) // 10,
                f"NodeGetVolumeStats during NodeUnpublishVolume reports a total of {usage.total}, the"
                f" volume's is {known}: the numbers are those of another file system",
                section="NodeGetVolumeStats",
            )


@case(
    "stats/device",
    "NodeGetVolumeStats",
    "The total of a raw device is its size, not that of the file system in which the device file is.",
    "stats",
    "create",
)
async def of_a_device(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(capability=BLOCK), env.nodes[0]
    try:
        usage = await _usage(node, volume)
    except CallError as error:
        raise NotSupported(f"it has no statistics of raw devices: {error}") from None
    size = await env.host.size_of(volume.target(node))
    total = usage[BYTES].total if BYTES in usage else 0
    require(
        not total or abs(total - size) <= size // 10,
        f"the device has {size} bytes, NodeGetVolumeStats reports a total of {total}",
    )
