"""What a filter is made of."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from volplane.api.core import Pod
from volplane.api.meta import Resource
from volplane.scheduler.node_cache import NodeInfo
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot


class NodeRefusal(Struct, frozen=True):
    """A node is refused, for all of these reasons."""

    reasons: tuple[str, ...]
    final: bool = True  # no eviction would help


class PodRefusal(Struct, frozen=True):
    """The pod is refused, whatever the node."""

    message: str


NodeCheck = Callable[[NodeInfo], NodeRefusal | None]


class Filter(Struct, frozen=True):
    name: str
    prepare: Callable[[Pod, SchedulingSnapshot], NodeCheck | PodRefusal | None]
    waking_kinds: frozenset[type[Resource]]  # kinds whose change may let a refused pod pass
