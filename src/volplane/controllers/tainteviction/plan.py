"""How long a pod may still stay on a tainted node.

All NoExecute taints must be tolerated; the shortest tolerationSeconds among the tolerations that do so is
the time the pod has, counted from when the taint was first seen with the pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from msgspec import Struct

from volplane.api.core import Pod, Taint
from volplane.rules.steps import TICK, RecordEvent, normal
from volplane.rules.taints import NO_EXECUTE, tolerates
from volplane.rules.waits import Wait, WaitData, WaitReason


class EvictPod(Struct, frozen=True):
    pass


class TaintView(Struct, frozen=True):
    pod: Pod
    taints: Sequence[Taint]  # NoExecute taints of its node
    elapsed: float = 0.0  # seconds since pod and taints were first seen together
    announced: bool = False  # an eviction was pending when the pod was planned before


def plan(view: TaintView) -> Iterator[EvictPod | Wait | RecordEvent]:
    pod, taints = view.pod, view.taints
    if pod.is_deleting:
        return
    if not taints and view.announced:
        yield normal("TaintManagerEviction", f"Cancelling deletion of Pod {pod.key}")
    if not pod.spec.node_name:
        return
    left = toleration_seconds(pod, taints) - view.elapsed
    if left <= TICK:
        yield EvictPod()
    elif left != inf:
        keys = tuple(sorted({t.key for t in taints if t.effect == NO_EXECUTE}))
        yield Wait(WaitReason.TOLERATION, WaitData(names=keys), left)


def toleration_seconds(pod: Pod, taints: Sequence[Taint]) -> float:
    """Seconds that the pod tolerates the taints: 0: not at all, infinite: forever."""
    shortest = inf
    for taint in (t for t in taints if t.effect == NO_EXECUTE):
        tolerating = [t for t in pod.spec.tolerations if tolerates(t, taint)]
        if not tolerating:
            return 0.0
        # For each taint, the first matching toleration counts.
        seconds = tolerating[0].toleration_seconds
        if seconds is not None:
            shortest = min(shortest, max(float(seconds), 0.0))
    return shortest
