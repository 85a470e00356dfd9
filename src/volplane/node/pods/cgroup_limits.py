"""What the kernel grants a container, from its resources and its pod's quality of service. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from volplane.api import quantity
from volplane.api.core import Container, Pod
from volplane.node.containers.base import CgroupLimits
from volplane.node.pods.status import qos_class

MIN_SHARES, MAX_SHARES, SHARES_PER_CPU = 2, 262_144, 1024
PERIOD, MIN_QUOTA = 100_000, 1000  # microseconds
GUARANTEED_SCORE, BEST_EFFORT_SCORE = -997, 1000
CRITICAL = 2_000_000_000  # the priority of pods that the kernel must not kill


def make_limits(pod: Pod, container: Container, capacity: Mapping[str, str]) -> CgroupLimits:
    """`capacity`: of the node."""
    limits, requests = container.resources.limits, container.resources.requests
    cpu_limit = quantity.milli(limits.get("cpu", "0"))
    cpu = quantity.milli(requests.get("cpu", limits.get("cpu", "0")))
    return CgroupLimits(
        cpu_shares=min(max(cpu * SHARES_PER_CPU // 1000, MIN_SHARES), MAX_SHARES),
        cpu_quota=max(cpu_limit * PERIOD // 1000, MIN_QUOTA) if cpu_limit else 0,
        cpu_period=PERIOD if cpu_limit else 0,
        memory=quantity.value(limits.get("memory", "0")),
        oom_score_adj=oom_score(pod, container, quantity.value(capacity.get("memory", "0"))),
    )


def oom_score(pod: Pod, container: Container, memory: int) -> int:
    """How readily the kernel kills the container when memory is short; `memory`: that of the node."""
    if (pod.spec.priority or 0) >= CRITICAL:
        return GUARANTEED_SCORE
    quality = pod.status.qos_class or qos_class(pod)
    if quality == "Guaranteed":
        return GUARANTEED_SCORE
    if quality == "BestEffort" or not memory:
        return BEST_EFFORT_SCORE
    requested = quantity.value(container.resources.requests.get("memory", "0"))
    score = 1000 - 1000 * requested // memory
    # Between that of Guaranteed and that of BestEffort pods.
    return min(max(score, 1000 + GUARANTEED_SCORE), BEST_EFFORT_SCORE - 1)
