"""What a pod requests of its node, and what a node can allocate, as integers.

CPU counts in millicores, everything else in units. Init containers run one after the other before the rest,
so a pod requests the greater of their peak and the sum of what runs later. A restartable init container (a
sidecar) keeps running, and counts on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from volplane.api import quantity
from volplane.api.core import Container, Node, Pod, ResourceRequirements

CPU = "cpu"
MEMORY = "memory"
STORAGE = "ephemeral-storage"
PODS = "pods"


def amount(name: str, text: str) -> int:
    return quantity.milli(text) if name == CPU else quantity.value(text)


def amounts(wanted: Mapping[str, str]) -> dict[str, int]:
    return {name: amount(name, text) for name, text in wanted.items()}


def allocatable(node: Node) -> dict[str, int]:
    return amounts(node.status.allocatable)


def requests(pod: Pod) -> dict[str, int]:
    """All requests of the pod, without zeros."""
    spec = pod.spec
    plain = not (spec.init_containers or spec.overhead or spec.resources)
    if plain and len(spec.containers) == 1:
        return _without_zero(amounts(spec.containers[0].resources.requests))  # most pods
    return _without_zero(_total(pod, lambda wanted: wanted.requests))


def memory_limit(pod: Pod) -> int:
    """The memory limit of the whole pod in bytes; 0 if a container has none."""
    spec = pod.spec
    own = spec.resources is not None and MEMORY in spec.resources.limits
    if not own and not all(MEMORY in c.resources.limits for c in (*spec.containers, *spec.init_containers)):
        return 0
    return _total(pod, lambda wanted: wanted.limits).get(MEMORY, 0)


def _total(pod: Pod, choose: Callable[[ResourceRequirements], Mapping[str, str]]) -> dict[str, int]:
    """The requests, or the limits, of the whole pod."""
    spec = pod.spec
    running = _sum(amounts(choose(c.resources)) for c in spec.containers)
    peak: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    for container in spec.init_containers:
        own = amounts(choose(container.resources))
        if is_sidecar(container):
            sidecars = _sum((sidecars, own))
            peak = _max(peak, sidecars)
        else:
            peak = _max(peak, _sum((sidecars, own)))
    total = _max(_sum((running, sidecars)), peak)
    if spec.resources is not None:  # those of the pod replace the sum of the containers
        total |= amounts(choose(spec.resources))
    return _sum((total, amounts(spec.overhead)))


def is_sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total


def _max(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in one.keys() | other.keys()}


def _without_zero(wanted: Mapping[str, int]) -> dict[str, int]:
    return {name: value for name, value in wanted.items() if value}
