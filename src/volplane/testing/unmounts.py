"""Wait until the nodes of a cluster have unmounted: they continue when the pod is gone.

Kubernetes removes the object of a pod that has ended at once, and deletes the volume of its claim while a
node may still unstage it, unless the driver attaches volumes. So a case waits before it deletes a claim, and
before it judges the mounts.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from volplane.cluster.external_driver.workloads import KUBELET
from volplane.csi.call_interceptor import CsiCall
from volplane.host import mounts

if TYPE_CHECKING:
    from volplane.testing.cluster_env import ClusterEnv
    from volplane.testing.cluster_objects import ClusterObjects

INTERVAL = 0.05  # seconds between two looks
GRACE = 5.0  # seconds after the last unmount call until what is still mounted counts as left
_MOUNTS = {"NodeStageVolume": "staging_target_path", "NodePublishVolume": "target_path"}
_UNMOUNTS = {"NodeUnstageVolume": "staging_target_path", "NodeUnpublishVolume": "target_path"}
_PATHS = {**_MOUNTS, **_UNMOUNTS}


async def wait_until_unmounted(env: ClusterObjects, handles: Collection[str]) -> None:
    """Wait until every node has called NodeUnpublishVolume and NodeUnstageVolume for these volumes, whatever
    the answers were. A node that was killed has to start again before it does.
    """
    while _used_places(env, handles):  # noqa: ASYNC110  (mounts of several processes have no events)
        await asyncio.sleep(INTERVAL)


def _used_places(env: ClusterObjects, handles: Collection[str]) -> list[str]:
    """Real paths of the volumes with a mount, for which no first call to unmount them has ended."""
    last: dict[str, CsiCall] = {}
    for call in env.calls():
        if call.method in _PATHS:
            request = json.loads(call.request)
            if request.get("volume_id") in handles:
                last[_real_path(env, call, request.get(_PATHS[call.method], ""))] = call
    return [path for path, call in last.items() if _is_used(path, call)]


def _real_path(env: ClusterObjects, call: CsiCall, path: str) -> str:
    roots = (m.root for m in env.cluster.members if call.address.startswith(f"{m.root}/"))
    return str(next(roots, KUBELET)) + path.removeprefix(KUBELET)


def _is_used(path: str, call: CsiCall) -> bool:
    if call.method in _UNMOUNTS:
        return not call.end
    return os.path.exists(path) and mounts.is_mount(path)


async def wait_for_unmounts(env: ClusterEnv, known: Collection[str] = ()) -> list[str]:
    """The mounts other than `known` that are left when the nodes had time to unmount them."""
    began = time.monotonic()
    while left := [target for target in await env.mounts_left() if target not in known]:
        if time.monotonic() - max(began, _last_unmount(env.calls())) > GRACE:
            break
        await asyncio.sleep(INTERVAL)
    return left


def _last_unmount(calls: Iterable[CsiCall]) -> float:
    """When the last unmount call ended; now, if one is running."""
    ends = (call.end or time.monotonic() for call in calls if call.method in _UNMOUNTS)
    return max(ends, default=0.0)
