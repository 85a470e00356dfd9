"""Which pods no kubelet will finish, and why they may be removed without their kubelet.

A pod on a node that does not exist: deleting a Node confirms that nothing runs there; a node that was never
seen may only be late, and is waited for. A pod that is being deleted, on a node that is not ready and has the
out-of-service taint: the taint confirms the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from volplane.api.core import Node, Pod
from volplane.rules.pods import has_ended
from volplane.rules.taints import is_out_of_service, is_ready
from volplane.rules.waits import Wait, WaitData, WaitReason


class RemovePod(Struct, frozen=True):
    """Delete without grace, after setting the phase to Failed for controllers that count pods."""

    pod: Pod
    why: str
    gone: str = ""  # the node that the server must confirm to be gone


def plan(pod: Pod, node: Node | None, *, quarantine: float) -> Iterator[RemovePod | Wait]:
    """Steps for a pod and its node; `quarantine`: seconds that a missing node still has to appear."""
    name = pod.spec.node_name
    if not name:
        if pod.is_deleting:
            yield RemovePod(pod, "it is going and was never scheduled")
    elif node is None:
        if quarantine > 0:
            yield Wait(WaitReason.NODE_QUARANTINE, WaitData(node=name), quarantine)
        else:
            yield RemovePod(pod, "PodGC: node no longer exists", gone=name)
    elif pod.is_deleting and not is_ready(node) and is_out_of_service(node):
        yield RemovePod(pod, f"node {name} is out of service")


def surplus(ended: Iterable[Pod], threshold: int) -> list[Pod]:
    """Of finished pods, those beyond the threshold: evicted ones first, then the oldest."""
    found = [p for p in ended if has_ended(p)]
    found.sort(key=lambda p: (p.status.reason != "Evicted", p.metadata.creation_timestamp, p.name))
    return found[: max(len(found) - threshold, 0)]
