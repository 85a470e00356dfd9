"""NodeResourcesFit: what the pod asks for is still free; everything that is short is told."""

from __future__ import annotations

from volplane.api.core import Node, Pod
from volplane.rules import resources
from volplane.scheduler.filters.base import Check, Filter, No
from volplane.scheduler.ledger import Info
from volplane.scheduler.world import World

TOO_MANY = "Too many pods"


def prepare(pod: Pod, world: World) -> Check | None:
    wanted = tuple(resources.requests(pod).items())

    def check(info: Info) -> No | None:
        have, used = info.allocatable, info.requested
        full = len(info.pods) >= have.get(resources.PODS, 0)
        short = [name for name, amount in wanted if amount > have.get(name, 0) - used[name]]
        if not full and not short:
            return None
        reasons = (*((TOO_MANY,) if full else ()), *(f"Insufficient {name}" for name in short))
        # What exceeds the whole node does not fit by evicting others either.
        return No(reasons, final=any(amount > have.get(name, 0) for name, amount in wanted))

    return check


FILTER = Filter("NodeResourcesFit", prepare, frozenset({Node, Pod}))
