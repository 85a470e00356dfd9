"""Over many lifecycles a driver keeps neither more open files nor more threads, zombies or stored bytes.

One measurement proves nothing: a pool of threads grows until it is full. So the numbers are compared three
times, and only those that grow with every lifecycle are leaks.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from volplane.base.backoff import Backoff, Failures
from volplane.testing.case import CaseTable, NotSupported, require
from volplane.testing.socket_env import MIB, SocketEnv

case = CaseTable()

WARM_UP, LIVES = 2, 5
WRITTEN = 32 * MIB
SPACE_PATIENCE = 5.0  # seconds until the space of a deleted volume must be free
POLL = Backoff(0.05, 1.0)


async def _live(env: SocketEnv, times: int) -> dict[str, tuple[int, int, int]]:
    """Run lifecycles; returns the descriptors, threads and zombies of each instance afterwards."""
    for _ in range(times):
        volume = await env.create_and_publish()
        await volume.take_down_and_delete(env.nodes[0])
        env.volumes.remove(volume)
    return {instance.name: await env.host.call(instance.resources) for instance in env.instances}


@case(
    "leaks/descriptors and threads",
    "Supervised Lifecycle Management",
    "The number of open files, threads and zombies of the driver does not grow with each volume.",
    "create",
)
async def descriptors_and_threads(env: SocketEnv) -> None:
    began = time.monotonic()
    first = await _live(env, WARM_UP)
    if (time.monotonic() - began) / WARM_UP * (WARM_UP + 2 * LIVES) > env.case_timeout / 2:
        raise NotSupported("its lifecycles take too long to repeat them")
    second = await _live(env, LIVES)
    third = await _live(env, LIVES)
    for name in first:
        for number, what in enumerate(("open files", "threads", "zombies")):
            counts = [found[name][number] for found in (first, second, third)]
            grows = all(later - earlier >= LIVES for earlier, later in pairwise(counts))
            require(
                not grows,
                f"{name} has {counts[0]} {what} after {WARM_UP} lifecycles, {counts[1]} after {LIVES} more,"
                f" and {counts[2]} after {LIVES} more",
            )


@case(
    "leaks/space",
    "DeleteVolume",
    "The space of a deleted volume is free again. (Only for drivers that store data in `$STATE_DIR` or"
    " `$SHARED_DIR`.)",
    "provision",
)
async def space(env: SocketEnv) -> None:
    before = await _used_space(env)
    volume, written = await env.create_with_data(of=WRITTEN)
    await volume.unpublish_unstage_detach(env.nodes[0])
    stored = await _used_space(env) - before
    if stored < len(written) // 2:
        raise NotSupported(f"{len(written)} bytes were written, and its directories have grown by {stored}")
    await volume.delete()
    left = await _wait_for_free_space(env, before + len(written) // 2) - before
    require(
        left <= len(written) // 2,
        f"{len(written)} bytes were written to a volume, and its directories have {left} more bytes after the"
        " volume was deleted",
    )


async def _wait_for_free_space(env: SocketEnv, most: int) -> int:
    """Wait for a while until at most so many bytes are used: a driver may delete later. Returns the bytes."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SPACE_PATIENCE):
            tries = Failures(POLL)
            while await _used_space(env) > most:  # noqa: ASYNC110 - no event tells when a driver deletes
                await asyncio.sleep(tries.next_delay())
    return await _used_space(env)


async def _used_space(env: SocketEnv) -> int:
    """Bytes in the directories of all instances."""
    places = {place for instance in env.instances for place in instance.data_directories}
    return sum([await env.host.call(_count_bytes, place) for place in places])


def _count_bytes(place: Path) -> int:
    found = 0
    for directory, _, names in os.walk(place):
        for name in names:
            with suppress(OSError):  # it was removed meanwhile
                found += os.lstat(os.path.join(directory, name)).st_blocks * 512
    return found
