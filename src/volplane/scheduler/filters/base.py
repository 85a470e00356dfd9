"""The parts of a filter."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from volplane.api.core import Pod
from volplane.api.meta import Resource
from volplane.scheduler.node_cache import NodeInfo
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot


class NodeRefusal(Struct, frozen=True):
    """The node does not fit, for all these reasons."""

    reasons: tuple[str, ...]
    final: bool = True  # no preemption can help


class PodRefusal(Struct, frozen=True):
    """The pod fits on no node."""

    message: str


NodeCheck = Callable[[NodeInfo], NodeRefusal | None]


class Filter(Struct, frozen=True):
    name: str
    prepare: Callable[[Pod, SchedulingSnapshot], NodeCheck | PodRefusal | None]
    waking_kinds: frozenset[type[Resource]]  # kinds whose changes may make the pod schedulable
