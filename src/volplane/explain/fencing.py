"""Whether a node is known to be off: its taint, its deletion, or the fencer's proof.

Without one of them a node that is not ready may still write to its disks, so they stay attached.
"""

from __future__ import annotations

from volplane.api.core import Node
from volplane.explain.cluster_state import ClusterState
from volplane.rules.taints import INSTANCE_STOPPED, OUT_OF_SERVICE, is_out_of_service, is_ready

FENCER = "node-fencer"


def describe_fencing(state: ClusterState, name: str, node: Node | None) -> list[str]:
    if node is None:
        return [f"node {name} is deleted, so nothing runs there"]
    taint = next((t for t in node.spec.taints if t.key == OUT_OF_SERVICE), None)
    if taint is not None:
        by = (
            "the fencer, because its instance is stopped"
            if taint.value == INSTANCE_STOPPED
            else "an operator"
        )
        return [f"{name} is tainted {OUT_OF_SERVICE}={taint.value}:{taint.effect} by {by}"]
    if is_ready(node):
        return []
    reports = state.roles.find(FENCER, name)
    return [f"not fenced: {reports[0].why}" if reports else f"{name} has no {OUT_OF_SERVICE} taint"]


def advise_fencing(name: str, node: Node | None) -> tuple[str, ...]:
    """What an operator can do about a node that is not ready."""
    if node is None or is_out_of_service(node) or is_ready(node):
        return ()
    return (
        f"best: bring {name} back; its kubelet unmounts, and the volume moves",
        f"if {name} is powered off and will come back: "
        f"kubectl taint node {name} {OUT_OF_SERVICE}=nodeshutdown:NoExecute",
        f"if {name} is powered off for good: kubectl delete node {name}",
        "do neither while it may still run: two nodes would write to one disk",
    )
