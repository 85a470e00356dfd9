"""Who vouches that nothing runs on a node any more: an operator, a cloud that says it is off, or nobody.

Without such a word a node that does not answer may still write, and its disks stay where they are.
"""

from __future__ import annotations

from volplane.api.core import Node
from volplane.explain.cluster_state import ClusterState
from volplane.rules.taints import INSTANCE_STOPPED, OUT_OF_SERVICE, is_out_of_service, is_ready

FENCER = "node-fencer"


def describe_fencing(scene: ClusterState, name: str, node: Node | None) -> list[str]:
    if node is None:
        return [f"node {name} was deleted, which says that nothing runs there"]
    taint = next((t for t in node.spec.taints if t.key == OUT_OF_SERVICE), None)
    if taint is not None:
        whose = (
            "the fencer: its cloud says that the machine is off"
            if taint.value == INSTANCE_STOPPED
            else "an operator"
        )
        return [f"{name} is out of service, says {whose} ({OUT_OF_SERVICE}={taint.value}:{taint.effect})"]
    if is_ready(node):
        return []
    notes = scene.roles.of(FENCER, name)
    return [f"no proof that it is off: {notes[0].why}" if notes else f"{name} has no {OUT_OF_SERVICE} taint"]


def advise_fencing(name: str, node: Node | None) -> tuple[str, ...]:
    """What an operator can do about a node that does not answer."""
    if node is None or is_out_of_service(node) or is_ready(node):
        return ()
    return (
        f"best: get {name} to answer again (its kubelet unmounts, and the volume moves by itself)",
        f"if {name} is surely off, and comes back later: "
        f"kubectl taint node {name} {OUT_OF_SERVICE}=nodeshutdown:NoExecute",
        f"if {name} is surely off, and does not come back: kubectl delete node {name}",
        "never either of them while it may still run: two nodes would write to one disk",
    )
