"""What a pod uses of quotas: its number, and what its containers request and may use at most.

A pod that has ended, or that should have been gone, counts as an object only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from volplane.api.core import Container, ContainerStatus, Pod, PodAffinityTerm
from volplane.api.quantity import Amount
from volplane.rules.pods import has_ended
from volplane.rules.quotas.amounts import ONE, Amounts, add, greatest, read_amounts, sum_amounts
from volplane.rules.resources import CPU, MEMORY, PODS, STORAGE, is_sidecar

COUNT = "count/pods"
REQUESTS, LIMITS = "requests.", "limits."
HUGE_PAGES = "hugepages-"
NAMES = frozenset(
    {COUNT, PODS}
    | {f"{prefix}{name}" for prefix in ("", REQUESTS, LIMITS) for name in (CPU, MEMORY, STORAGE)}
)
# Upstream's mistake, kept: a quota of these makes every container name them.
NAMED_BY_EACH_CONTAINER = frozenset(
    f"{prefix}{name}" for prefix in ("", LIMITS, REQUESTS) for name in (CPU, MEMORY)
)
_OF_PODS = (CPU, MEMORY)  # and huge pages: what `spec.resources` of a pod may name

TERMINATING, NOT_TERMINATING = "Terminating", "NotTerminating"
BEST_EFFORT, NOT_BEST_EFFORT = "BestEffort", "NotBestEffort"
PRIORITY_CLASS = "PriorityClass"
CROSS_NAMESPACE_AFFINITY = "CrossNamespacePodAffinity"


def is_pod_resource(name: str) -> bool:
    """Whether pods use this resource of a quota."""
    if name in NAMES or name.startswith((HUGE_PAGES, f"{REQUESTS}{HUGE_PAGES}")):
        return True
    return name.startswith(REQUESTS) and not is_native(name)


def is_native(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name


def is_extended(name: str) -> bool:
    return not is_native(name) and not name.startswith(REQUESTS)


def scopes_of(pod: Pod) -> frozenset[str]:
    ends = pod.spec.active_deadline_seconds
    best_effort = pod.status.qos_class == "BestEffort"
    scopes = {
        TERMINATING if ends is not None and ends >= 0 else NOT_TERMINATING,
        BEST_EFFORT if best_effort else NOT_BEST_EFFORT,
    }
    if _names_other_namespaces(pod):
        scopes.add(CROSS_NAMESPACE_AFFINITY)
    return frozenset(scopes)


def _names_other_namespaces(pod: Pod) -> bool:
    return any(t.namespaces or t.namespace_selector is not None for t in _affinity_terms(pod))


def _affinity_terms(pod: Pod) -> Iterator[PodAffinityTerm]:
    if pod.spec.affinity is None:
        return
    for affinity in (pod.spec.affinity.pod_affinity, pod.spec.affinity.pod_anti_affinity):
        if affinity is not None:
            yield from affinity.required_during_scheduling_ignored_during_execution
            for weighted in affinity.preferred_during_scheduling_ignored_during_execution:
                yield weighted.pod_affinity_term


def runs_until(pod: Pod) -> datetime | None:
    """When a pod that is being deleted should be gone at the latest; None: it is not being deleted."""
    seconds = pod.metadata.deletion_grace_period_seconds
    if pod.metadata.deletion_timestamp is None or seconds is None:
        return None
    return datetime.fromisoformat(pod.metadata.deletion_timestamp) + timedelta(seconds=seconds)


def running_usage(pod: Pod) -> dict[str, Amount]:
    """What the pod uses until it ends, besides its number as an object."""
    if has_ended(pod):
        return {}
    used = _quota_resources(_requests(pod), _limits(pod))
    used[PODS] = ONE
    return used


def _quota_resources(requests: Amounts, limits: Amounts) -> dict[str, Amount]:
    """Requests and limits by the names that quotas have for them."""
    used: dict[str, Amount] = {}
    for name in (CPU, MEMORY, STORAGE):
        if name in requests:
            used[name] = used[f"{REQUESTS}{name}"] = requests[name]
        if name in limits:
            used[f"{LIMITS}{name}"] = limits[name]
    for name, amount in requests.items():
        if name.startswith(HUGE_PAGES):
            used[name] = used[f"{REQUESTS}{name}"] = amount
        elif is_extended(name):
            used[f"{REQUESTS}{name}"] = amount
    return used


def _requests(pod: Pod) -> Amounts:
    statuses = {
        s.name: s
        for s in (*pod.status.container_statuses, *pod.status.init_container_statuses)
        if s.resources is not None  # it is being resized, or was
    }
    total = sum_containers(pod, lambda c: _container_requests(pod, c, statuses.get(c.name)))
    if pod.spec.resources is not None:
        total |= _read_pod_level(pod.spec.resources.requests)
    return sum_amounts((total, read_amounts(pod.spec.overhead)))


def _container_requests(pod: Pod, container: Container, status: ContainerStatus | None) -> Amounts:
    """The most of what is requested, allocated and in effect, while a container is resized."""
    asked = read_amounts(container.resources.requests)
    if status is None or status.resources is None:
        return asked
    held = greatest(read_amounts(status.resources.requests), read_amounts(status.allocated_resources))
    return held if _is_resize_infeasible(pod) else greatest(asked, held)


def _is_resize_infeasible(pod: Pod) -> bool:
    return any(c.type == "PodResizePending" and c.reason == "Infeasible" for c in pod.status.conditions)


def _limits(pod: Pod) -> Amounts:
    total = sum_containers(pod, lambda c: read_amounts(c.resources.limits))
    if pod.spec.resources is not None:
        total |= _read_pod_level(pod.spec.resources.limits)
    for name, amount in read_amounts(pod.spec.overhead).items():
        if name in total and total[name].nanos:
            total[name] = add(total[name], amount)
    return total


def _read_pod_level(wanted: Mapping[str, str]) -> Amounts:
    return read_amounts({n: a for n, a in wanted.items() if n in _OF_PODS or n.startswith(HUGE_PAGES)})


def sum_containers(pod: Pod, of: Callable[[Container], Amounts]) -> dict[str, Amount]:
    """What the containers need at the same time: see `rules.resources`."""
    running = sum_amounts(map(of, pod.spec.containers))
    if not pod.spec.init_containers:
        return running
    peak: dict[str, Amount] = {}
    sidecars: dict[str, Amount] = {}
    for container in pod.spec.init_containers:
        own = of(container)
        if is_sidecar(container):
            sidecars = sum_amounts((sidecars, own))
            peak = greatest(peak, sidecars)
        else:
            peak = greatest(peak, sum_amounts((sidecars, own)))
    return greatest(sum_amounts((running, sidecars)), peak)


# Containers that name no amount


def describe_unnamed(pod: Pod, limited: Iterable[str]) -> str:
    """Why a pod is refused of which a container does not name a limited resource; "" if all do."""
    wanted = sorted(set(limited) & NAMED_BY_EACH_CONTAINER)
    every = (*pod.spec.containers, *pod.spec.init_containers)
    found = []
    for name in wanted:
        lacking = sorted({c.name for c in every if not _names(c, name)})
        if lacking:
            found.append(f"{name} for: {','.join(lacking)}")
    return f"must specify {'; '.join(found)}" if found else ""


def _names(container: Container, limited: str) -> bool:
    if limited.startswith(LIMITS):
        return limited.removeprefix(LIMITS) in container.resources.limits
    return limited.removeprefix(REQUESTS) in container.resources.requests
