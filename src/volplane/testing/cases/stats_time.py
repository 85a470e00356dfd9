"""NodeGetVolumeStats takes time: a kubelet calls it for every volume, every minute.

It asks for the volumes of a pod one after the other. Numbers that are counted for seconds are old when the
last volume has answered, and a driver that counts under a lock delays the start of other pods.
"""

from __future__ import annotations

import asyncio
import time

from volplane.csi import v1
from volplane.testing.case import CaseTable, NotSupported, require
from volplane.testing.socket_env import DriverSocket, SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

LIMIT = 3.0  # seconds for the fastest answer: a pod may have twenty volumes
NOTICEABLE = 0.5  # seconds; whether a faster call holds others up cannot be seen, and does not matter
ATTEMPTS = 3  # the machine may be busy


async def _ask(node: DriverSocket, volume: VolumeUnderTest) -> None:
    request = v1.NodeGetVolumeStatsRequest(
        volume_id=volume.id, volume_path=volume.target(node), staging_target_path=volume.staging(node)
    )
    await node.call("NodeGetVolumeStats", request)


async def _fastest_answer(node: DriverSocket, volume: VolumeUnderTest, enough: float) -> float:
    """Seconds of the fastest of some calls; the first that takes at most `enough` is the last."""
    fastest = float("inf")
    for _ in range(ATTEMPTS):
        began = time.monotonic()
        await _ask(node, volume)
        fastest = min(fastest, time.monotonic() - began)
        if fastest <= enough:
            break
    return fastest


@case(
    "stats/in time",
    "Kubernetes: volume metrics of a kubelet",
    f"Statistics of a small volume take at most {LIMIT:g} s: a kubelet asks for all volumes of a pod, one"
    " after the other, every minute.",
    "stats",
    "create",
)
async def in_time(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(), env.nodes[0]
    fastest = await _fastest_answer(node, volume, LIMIT)
    require(
        fastest <= LIMIT,
        f"the fastest of {ATTEMPTS} NodeGetVolumeStats of a new volume took {fastest:.1f} s, expected"
        f" {LIMIT:g} s at most",
    )


@case(
    "stats/hold up nothing",
    "Concurrency",
    "A NodeGetVolumeStats that takes long does not delay calls for other volumes.",
    "stats",
    "create",
)
async def hold_up_nothing(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(), env.nodes[0]
    takes = await _fastest_answer(node, volume, NOTICEABLE)
    if takes <= NOTICEABLE:
        return
    other = await env.create()
    await other.attach(node)
    await other.stage(node)
    alone = await _publish_and_unpublish(other, node)
    if alone > takes / 2:
        raise NotSupported(f"publish and unpublish take {alone:.1f} s, NodeGetVolumeStats {takes:.1f} s")
    for _ in range(ATTEMPTS):
        asked = asyncio.ensure_future(_ask(node, volume))
        try:
            await asyncio.sleep(takes / 5)  # it has begun
            await _publish_and_unpublish(other, node)
            was_first = not asked.done()
        finally:
            await asyncio.gather(asked, return_exceptions=True)
        if was_first:
            return
    require(
        False,
        f"NodePublishVolume and NodeUnpublishVolume of another volume, which take {alone:.2f} s, end only"
        f" after a NodeGetVolumeStats that takes {takes:.1f} s, {ATTEMPTS} times in a row",
    )


async def _publish_and_unpublish(volume: VolumeUnderTest, node: DriverSocket) -> float:
    """Seconds of both calls."""
    began = time.monotonic()
    await volume.publish(node)
    await volume.unpublish(node)
    return time.monotonic() - began
