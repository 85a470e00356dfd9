"""How long a pod may still stay on a tainted node.

All NoExecute taints must be tolerated; the shortest tolerationSeconds among the tolerations that do so is
the time the pod has, counted from when the taint was first seen with the pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from msgspec import Struct

from volplane.api.core import Pod, Taint
from volplane.rules.steps import TICK, Wait
from volplane.rules.taints import NO_EXECUTE, tolerates


class Evict(Struct, frozen=True):
    pass


def plan(pod: Pod, taints: Sequence[Taint], elapsed: float) -> Iterator[Evict | Wait]:
    """Steps for a pod, its node's taints, and the seconds since they were first seen together."""
    if pod.is_deleting or not pod.spec.node_name:
        return
    left = patience(pod, taints) - elapsed
    if left <= TICK:
        yield Evict()
    elif left != inf:
        why = ", ".join(sorted({t.key for t in taints if t.effect == NO_EXECUTE}))
        yield Wait(left, f"tolerates {why} for a while")


def patience(pod: Pod, taints: Sequence[Taint]) -> float:
    """Seconds that the pod tolerates the taints: 0 for not at all, infinite for ever."""
    shortest = inf
    for taint in (t for t in taints if t.effect == NO_EXECUTE):
        tolerating = [t for t in pod.spec.tolerations if tolerates(t, taint)]
        if not tolerating:
            return 0.0
        # The first that tolerates a taint is the one that counts for it.
        seconds = tolerating[0].toleration_seconds
        if seconds is not None:
            shortest = min(shortest, max(float(seconds), 0.0))
    return shortest
