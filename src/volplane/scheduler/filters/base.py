"""What a filter is made of."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from volplane.api.core import Pod
from volplane.api.meta import Resource
from volplane.scheduler.ledger import Info
from volplane.scheduler.world import World


class No(Struct, frozen=True):
    """A node is refused, for all of these reasons."""

    reasons: tuple[str, ...]
    final: bool = True  # no eviction would help


class Unfit(Struct, frozen=True):
    """The pod is refused, whatever the node."""

    message: str


Check = Callable[[Info], No | None]


class Filter(Struct, frozen=True):
    name: str
    prepare: Callable[[Pod, World], Check | Unfit | None]
    wakes: frozenset[type[Resource]]  # kinds whose change may let a refused pod pass
