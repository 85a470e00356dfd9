"""Over many lifecycles a driver keeps neither more file descriptors nor more threads.

One measurement proves nothing: a pool of threads grows until it is full. So the numbers are compared three
times, and only those that grow with every lifecycle are leaks.
"""

from __future__ import annotations

import time
from itertools import pairwise

from volplane.testing.case import CaseTable, NotSupported, require
from volplane.testing.socket_env import SocketEnv

case = CaseTable()

WARM_UP, LIVES = 2, 5


async def _live(env: SocketEnv, times: int) -> dict[str, tuple[int, int]]:
    """Run lifecycles; returns the descriptors and threads of each instance afterwards."""
    for _ in range(times):
        volume = await env.create_and_publish()
        await volume.take_down_and_delete(env.nodes[0])
        env.volumes.remove(volume)
    return {instance.name: await env.host.call(instance.resources) for instance in env.instances}


@case(
    "leaks/descriptors and threads",
    "Supervised Lifecycle Management",
    "The number of open files and threads of the driver does not grow with each volume.",
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
        for number, what in enumerate(("open files", "threads")):
            counts = [found[name][number] for found in (first, second, third)]
            grows = all(later - earlier >= LIVES for earlier, later in pairwise(counts))
            require(
                not grows,
                f"{name} has {counts[0]} {what} after {WARM_UP} lifecycles, {counts[1]} after {LIVES} more,"
                f" and {counts[2]} after {LIVES} more",
            )
