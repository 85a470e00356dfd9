"""When silence is proof: a node that does not answer, and whose machine its cloud says is off, runs nothing.

Then it gets the taint by which an operator would vouch for the same, with a value of ours, so that everything
that follows (pods removed, volumes detached) is what follows from an operator's word. The subtle thing: only
our own taint is ever taken away again, when the node answers.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from volplane.api.core import Node, Taint
from volplane.rules.steps import UNTIL_CHANGED, Wait
from volplane.rules.taints import (
    INSTANCE_STOPPED,
    NO_EXECUTE,
    OUT_OF_SERVICE,
    is_out_of_service,
    is_ready,
)

PROVEN = Taint(key=OUT_OF_SERVICE, value=INSTANCE_STOPPED, effect=NO_EXECUTE)
PERIOD = 5.0  # seconds between two questions, while a node does not answer


class Fence(Struct, frozen=True):
    taints: tuple[Taint, ...]  # all that the node has then


class Release(Struct, frozen=True):
    taints: tuple[Taint, ...]


def is_ours(taint: Taint) -> bool:
    return (taint.key, taint.value) == (PROVEN.key, PROVEN.value)


def wants_proof(node: Node) -> bool:
    """Whether it matters if the node's machine is off."""
    return not is_ready(node) and not is_out_of_service(node)


def plan(node: Node, instance: str, off: bool) -> Iterator[Fence | Release | Wait]:
    """`off`: the cloud says that the instance is; asked only where it matters."""
    taints = node.spec.taints
    if is_ready(node):
        others = tuple(taint for taint in taints if not is_ours(taint))
        if others != taints:
            yield Release(others)
    elif wants_proof(node):
        if off:
            yield Fence((*taints, PROVEN))
        elif instance:
            yield Wait(
                PERIOD, f"{node.name} does not answer, but its instance {instance} is not known to be off"
            )
        else:
            yield Wait(UNTIL_CHANGED, f"{node.name} does not answer, and nobody knows which instance it is")
