"""Which node a pod goes to, or why none will have it.

`decide` asks the filters node by node and compares the nodes that are left. In a big cluster it stops
looking when it has found enough of them, and starts the next search where this one ended, so that every
node has its turn.

The subtle thing: the text of a refusal is read by people and by programs, and its last part speaks of
preemption and of claims to resources even where neither is in play.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from volplane.api.core import Pod
from volplane.rules import taints, topology
from volplane.scheduler import preemption, scores
from volplane.scheduler.filters import FILTERS
from volplane.scheduler.filters.base import Check, Filter, No, Unfit
from volplane.scheduler.ledger import Info, Taken, taken_by
from volplane.scheduler.volumes import Bindings, bindings_on, sort_claims
from volplane.scheduler.world import World

ENOUGH = 100  # nodes that are compared; more than that are not looked for
NO_NODES = "no nodes available to schedule pods"

SCALE = scores.SCALE
COMPANY = SPREAD = 2  # what pod affinity and spreading weigh against room
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
    filters: Mapping[str, str] = {}  # by node, the one that refused it
    evict: preemption.Eviction | None = None  # others have to go first
    waiting: bool = False  # for those who have to go


def decide(
    pod: Pod, world: World, *, start: int = 0, filters: Sequence[Filter] = FILTERS
) -> Placement | Refusal:
    """`start`: where in the list of nodes the search begins."""
    with world.ledger.as_seen_by(pod):
        return _decide(pod, world, start, filters)


def _decide(pod: Pod, world: World, start: int, filters: Sequence[Filter]) -> Placement | Refusal:
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
    cleared = world.ledger.node(world.ledger.expected_on(pod.key))
    if cleared is not None and _judge(cleared, checks) is None:
        return _placement(pod, cleared, world, 0)  # others had to go for this
    fitting, refused, searched = _search(nodes, checks, start % len(nodes))
    if not fitting:
        return _refusal(pod, world, refused, filters)
    best = fitting[0] if len(fitting) == 1 else _best(pod, fitting, world)
    return _placement(pod, best, world, searched)


def _placement(pod: Pod, info: Info, world: World, searched: int) -> Placement:
    claims = sort_claims(pod, world)
    assert not isinstance(claims, str), "VolumeBinding has refused such a pod"
    return Placement(info.name, bindings_on(info, claims), searched)


def _refusal(
    pod: Pod, world: World, refused: Mapping[str, tuple[str, No]], filters: Sequence[Filter]
) -> Refusal:
    def fits(info: Info) -> No | None:
        for filter in filters:
            check = filter.prepare(pod, world)
            no = No((check.message,)) if isinstance(check, Unfit) else check(info) if check else None
            if no is not None:
                return no
        return None

    nos = {node: no for node, (_, no) in refused.items()}
    by = frozenset(name for name, _ in refused.values())
    reasons = {node: no.reasons for node, no in nos.items()}
    whose = {node: name for node, (name, _) in refused.items()}
    found = preemption.attempt(pod, world, nos, fits)
    if isinstance(found, preemption.Eviction):
        return Refusal(refusal_message(nos.values()), by, reasons, whose, evict=found)
    return Refusal(refusal_message(nos.values(), found.text), by, reasons, whose, waiting=found.waiting)


def _search(
    nodes: Sequence[Info], checks: Sequence[tuple[str, Check]], start: int
) -> tuple[list[Info], dict[str, tuple[str, No]], int]:
    fitting: list[Info] = []
    refused: dict[str, tuple[str, No]] = {}
    count = len(nodes)
    for at in range(start, start + count):
        info = nodes[at % count]
        verdict = _judge(info, checks)
        if verdict is not None:
            refused[info.name] = verdict
            continue
        fitting.append(info)
        if len(fitting) == ENOUGH:
            return fitting, refused, at - start + 1
    return fitting, refused, count


def _judge(info: Info, checks: Sequence[tuple[str, Check]]) -> tuple[str, No] | None:
    for name, check in checks:
        no = check(info)
        if no is not None:
            return name, no
    return None


# --- comparing


def _best(pod: Pod, nodes: Sequence[Info], world: World) -> Info:
    """The emptiest node after taking the pod, unless company or spreading say otherwise; equals by name."""
    taken = taken_by(pod)
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()

    company, spread = scores.company(pod, world, nodes), scores.spread(pod, world, nodes)

    def rank(at: int) -> tuple[int, int, str]:
        info = nodes[at]
        points = free_share(info, taken)
        points += COMPANY * company[at] if company else 0
        points += SPREAD * spread[at] if spread else 0
        if info.taints:
            soft = (taints.PREFER_NO_SCHEDULE,)
            avoided = (t for t in info.taints if taints.untolerated((t,), pod.spec.tolerations, soft))
            points -= AVOIDED * sum(1 for _ in avoided)
        for term in preferred:
            if topology.meets_term(term.preference, info.labels, info.name):
                points += PREFERRED * term.weight
        return -points, len(info.pods), info.name

    return nodes[min(range(len(nodes)), key=rank)]


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


def refusal_message(refused: Collection[No], preemption_text: str = "") -> str:
    """Each reason with the number of nodes that gave it, then what preemption would do about it."""
    reasons = Counter(reason for no in refused for reason in no.reasons)
    text = f"0/{len(refused)} nodes are available: {preemption.listed(reasons)}."
    return f"{text} no new claims to deallocate, preemption: {preemption_text}" if preemption_text else text
