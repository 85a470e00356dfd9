"""When a node is fenced: it is not ready, and the cloud confirms that its instance is off.

The node gets the out-of-service taint that an operator would set, with a value of our own, so that its pods
are deleted and its volumes detached. Only a taint with our value is removed, when the node is ready again.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from volplane.api.core import Node, Taint
from volplane.rules.taints import (
    INSTANCE_STOPPED,
    NO_EXECUTE,
    OUT_OF_SERVICE,
    is_out_of_service,
    is_ready,
)
from volplane.rules.waits import Wait, WaitData, WaitReason

FENCE_TAINT = Taint(key=OUT_OF_SERVICE, value=INSTANCE_STOPPED, effect=NO_EXECUTE)
CHECK_INTERVAL = 5.0  # seconds between two checks of a node that is not ready


class FencerView(Struct, frozen=True):
    node: Node
    instance: str  # the node's instance; "" if it is not known
    off: bool | None = None  # whether the cloud reports the instance off; None: not asked yet


class CheckInstance(Struct, frozen=True):
    """Ask the cloud whether the instance is off."""

    instance: str


class AddFenceTaint(Struct, frozen=True):
    taints: tuple[Taint, ...]  # all taints of the node afterwards


class RemoveFenceTaint(Struct, frozen=True):
    taints: tuple[Taint, ...]  # all taints of the node afterwards


Step = CheckInstance | AddFenceTaint | RemoveFenceTaint


def is_fence_taint(taint: Taint) -> bool:
    return (taint.key, taint.value) == (FENCE_TAINT.key, FENCE_TAINT.value)


def needs_instance_check(node: Node) -> bool:
    """The node is not ready, and nothing has confirmed yet that it is off."""
    return not is_ready(node) and not is_out_of_service(node)


def plan(view: FencerView) -> Iterator[Step | Wait]:
    node, instance = view.node, view.instance
    taints = node.spec.taints
    if is_ready(node):
        others = tuple(taint for taint in taints if not is_fence_taint(taint))
        if others != taints:
            yield RemoveFenceTaint(others)
    elif needs_instance_check(node):
        if view.off:
            yield AddFenceTaint((*taints, FENCE_TAINT))
        elif instance and view.off is None:
            yield CheckInstance(instance)
        elif instance:
            data = WaitData(node=node.name, names=(instance,))
            yield Wait(WaitReason.INSTANCE_NOT_STOPPED, data, CHECK_INTERVAL)
        else:
            yield Wait(WaitReason.INSTANCE_UNKNOWN, WaitData(node=node.name))
