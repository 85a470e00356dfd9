"""How fast pods may be evicted from nodes that are not ready.

Many nodes of a zone that stop reporting together mean a network failure rather than failed nodes, and then
evictions make it worse. When no node at all is ready, the control plane is cut off: nothing is evicted.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from msgspec import Struct

from volplane.api.core import Node
from volplane.api.labels import REGION_LABEL, ZONE_LABEL
from volplane.rules.steps import TICK
from volplane.rules.taints import is_ready

REGION, ZONE = REGION_LABEL, ZONE_LABEL


class EvictionRates(Struct, frozen=True):
    """Nodes per second and zone, named as the flags."""

    node_eviction_rate: float = 0.1
    secondary_node_eviction_rate: float = 0.01
    unhealthy_zone_threshold: float = 0.55
    large_cluster_size_threshold: int = 50


def zone_of(node: Node) -> str:
    labels = node.metadata.labels
    return f"{labels.get(REGION, '')}:{labels.get(ZONE, '')}"


def pause(node: Node, nodes: Iterable[Node], pace: EvictionRates) -> float:
    """Seconds between evictions of two nodes of the zone; infinite while none is allowed."""
    zones: dict[str, list[bool]] = {}
    for each in nodes:
        zones.setdefault(zone_of(each), []).append(is_ready(each))
    if not any(any(ready) for ready in zones.values()):
        return inf
    rate = _rate(zones.get(zone_of(node), []), pace)
    return 1 / rate if rate > 0 else inf


def _rate(ready: list[bool], pace: EvictionRates) -> float:
    lost = ready.count(False)
    if any(ready) and lost > 2 and lost / len(ready) >= pace.unhealthy_zone_threshold:
        large = len(ready) > pace.large_cluster_size_threshold
        return pace.secondary_node_eviction_rate if large else 0.0
    return pace.node_eviction_rate


class EvictionPace:
    """When the next node of each zone may be evicted."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}

    def seconds_left(self, zone: str, pause: float, now: float) -> float:
        """Seconds until another node of the zone may be evicted."""
        if pause == inf:
            return inf
        left = self._next.get(zone, now) - now
        return left if left > TICK else 0.0

    def note_eviction(self, zone: str, pause: float, now: float) -> None:
        self._next[zone] = now + pause
