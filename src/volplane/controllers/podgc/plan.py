"""Which pods nobody will finish, and why they may go without their kubelet's word.

A pod on a node that is gone: once the node was seen to go, that is the operator's word that nothing runs
there; a node never seen may only be late, and is waited for. A pod that is going, on a node that is not
ready and tainted out-of-service: the taint is the operator's word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from volplane.api.core import Node, Pod
from volplane.rules.pods import has_ended
from volplane.rules.steps import Wait
from volplane.rules.taints import is_out_of_service, is_ready


class Remove(Struct, frozen=True):
    """Delete without grace, marked as failed first so that whoever counts pods counts it."""

    pod: Pod
    why: str
    gone: str = ""  # the node that the server must confirm to be gone


def plan(pod: Pod, node: Node | None, *, quarantine: float) -> Iterator[Remove | Wait]:
    """Steps for a pod and its node; `quarantine`: seconds that a missing node may still have to show up."""
    name = pod.spec.node_name
    if not name:
        if pod.is_deleting:
            yield Remove(pod, "it is going and was never scheduled")
    elif node is None:
        if quarantine > 0:
            yield Wait(quarantine, f"node {name} may still show up")
        else:
            yield Remove(pod, "PodGC: node no longer exists", gone=name)
    elif pod.is_deleting and not is_ready(node) and is_out_of_service(node):
        yield Remove(pod, f"node {name} is out of service")


def surplus(ended: Iterable[Pod], threshold: int) -> list[Pod]:
    """Of finished pods, those beyond the threshold: evicted ones first, then the oldest."""
    found = [p for p in ended if has_ended(p)]
    found.sort(key=lambda p: (p.status.reason != "Evicted", p.metadata.creation_timestamp, p.name))
    return found[: max(len(found) - threshold, 0)]
