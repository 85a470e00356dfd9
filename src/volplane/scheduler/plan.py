"""Which node a pod goes to, or why none will have it.

`decide` asks the filters node by node and compares the nodes that are left. In a big cluster it stops
looking when it has found enough of them, and starts the next search where this one ended, so that every
node has its turn.

The subtle thing: the text of a refusal is read by people and by programs, and its last part speaks of
preemption and of claims to resources even where neither is in play.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from volplane.api.core import Pod
from volplane.rules import taints, topology
from volplane.scheduler.filters import FILTERS
from volplane.scheduler.filters.base import Check, Filter, No, Unfit
from volplane.scheduler.ledger import Info, Taken, taken_by
from volplane.scheduler.volumes import Bindings, bindings_on, sort_claims
from volplane.scheduler.world import World

ENOUGH = 100  # nodes that are compared; more than that are not looked for
NO_NODES = "no nodes available to schedule pods"
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"

SCALE = 1_000_000
PREFERRED = 2 * SCALE // 100  # for each point of a preferred affinity's weight, of which there are 100
AVOIDED = 3 * SCALE  # for each taint that would rather not


class Placement(Struct, frozen=True):
    node: str
    bindings: Bindings
    searched: int  # nodes that were looked at


class Refusal(Struct, frozen=True):
    message: str  # of the event and of the condition PodScheduled
    by: frozenset[str]  # the filters that refused
    reasons: Mapping[str, tuple[str, ...]] = {}  # by node, for who wants to know more


def decide(
    pod: Pod, world: World, *, start: int = 0, filters: Sequence[Filter] = FILTERS
) -> Placement | Refusal:
    """`start`: where in the list of nodes the search begins."""
    nodes = world.ledger.nodes
    if not nodes:
        return Refusal(NO_NODES, frozenset({"NodeName"}))
    checks: list[tuple[str, Check]] = []
    for filter in filters:
        prepared = filter.prepare(pod, world)
        if isinstance(prepared, Unfit):
            return Refusal(unfit_message(len(nodes), prepared.message), frozenset({filter.name}))
        if prepared is not None:
            checks.append((filter.name, prepared))
    fitting, refused, searched = _search(nodes, checks, start % len(nodes))
    if not fitting:
        by = frozenset(name for name, _ in refused.values())
        reasons = {node: no.reasons for node, (_, no) in refused.items()}
        return Refusal(refusal_message([no for _, no in refused.values()]), by, reasons)
    best = fitting[0] if len(fitting) == 1 else _best(pod, fitting)
    claims = sort_claims(pod, world)
    assert not isinstance(claims, str), "VolumeBinding has refused such a pod"
    return Placement(best.name, bindings_on(best, claims), searched)


def _search(
    nodes: Sequence[Info], checks: Sequence[tuple[str, Check]], start: int
) -> tuple[list[Info], dict[str, tuple[str, No]], int]:
    fitting: list[Info] = []
    refused: dict[str, tuple[str, No]] = {}
    count = len(nodes)
    for at in range(start, start + count):
        info = nodes[at % count]
        for name, check in checks:
            no = check(info)
            if no is not None:
                refused[info.name] = name, no
                break
        else:
            fitting.append(info)
            if len(fitting) == ENOUGH:
                return fitting, refused, at - start + 1
    return fitting, refused, count


# --- comparing


def _best(pod: Pod, nodes: Sequence[Info]) -> Info:
    """The emptiest node after taking the pod; equals by name."""
    taken = taken_by(pod)
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()

    def rank(info: Info) -> tuple[int, int, str]:
        points = free_share(info, taken)
        if info.taints:
            soft = (taints.PREFER_NO_SCHEDULE,)
            avoided = (t for t in info.taints if taints.untolerated((t,), pod.spec.tolerations, soft))
            points -= AVOIDED * sum(1 for _ in avoided)
        for term in preferred:
            if topology.meets_term(term.preference, info.labels, info.name):
                points += PREFERRED * term.weight
        return -points, len(info.pods), info.name

    return min(nodes, key=rank)


def free_share(info: Info, taken: Taken) -> int:
    """How much of CPU and memory would be left, of SCALE."""
    cpu = info.allocatable.get("cpu", 0)
    memory = info.allocatable.get("memory", 0)
    left_cpu = max(cpu - info.cpu - taken.cpu, 0) * SCALE // cpu if cpu else 0
    left_memory = max(memory - info.memory - taken.memory, 0) * SCALE // memory if memory else 0
    return (left_cpu + left_memory) // 2


# --- saying why not


def unfit_message(nodes: int, message: str) -> str:
    return f"0/{nodes} nodes are available: {message}. not found"


def refusal_message(refused: Sequence[No]) -> str:
    """Each reason with the number of nodes that gave it, then what preemption would do about it."""
    nodes = len(refused)
    reasons = Counter(reason for no in refused for reason in no.reasons)
    help = Counter(NOT_HELPFUL if no.final else NO_VICTIMS for no in refused)
    head = f"0/{nodes} nodes are available:"
    return f"{head} {_listed(reasons)}. no new claims to deallocate, preemption: {head} {_listed(help)}."


def _listed(reasons: Mapping[str, int]) -> str:
    return ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
