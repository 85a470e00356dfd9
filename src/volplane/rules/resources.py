"""What a pod requests of its node, and what a node can allocate, as integers.

CPU counts in millicores, everything else in units. Init containers run one after the other before the rest,
so a pod requests the greater of their peak and the sum of what runs later. A restartable init container (a
sidecar) keeps running, and counts on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from volplane.api import quantity
from volplane.api.core import Container, Node, Pod

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
    running = _sum(amounts(c.resources.requests) for c in spec.containers)
    peak: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    for container in spec.init_containers:
        own = amounts(container.resources.requests)
        if is_sidecar(container):
            sidecars = _sum((sidecars, own))
            peak = _max(peak, sidecars)
        else:
            peak = _max(peak, _sum((sidecars, own)))
    total = _max(_sum((running, sidecars)), peak)
    if spec.resources is not None:  # pod-level requests replace the sum of the containers
        total |= amounts(spec.resources.requests)
    return _without_zero(_sum((total, amounts(spec.overhead))))


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
