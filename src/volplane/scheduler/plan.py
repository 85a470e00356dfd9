"""What to do about a pod: reserve a node, write its volumes' bindings, bind it, or report why no node fits.

`decide` runs the filters node by node and compares the nodes that are left. In a large cluster it stops when
it has found enough of them, and starts the next search where this one ended, so that all nodes are used.

The message of a refusal is that of upstream: its last part is about preemption and resource claims even where
neither matters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import assert_never

from msgspec import Struct, structs

from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.core import Node, PersistentVolumeClaim, Pod
from volplane.rules import taints, topology
from volplane.rules.steps import CommonStep, Requeue
from volplane.rules.waits import Wait, WaitData, WaitReason
from volplane.scheduler import prebind, preemption, scores
from volplane.scheduler.filters.base import NodeCheck, NodeRefusal, PodRefusal
from volplane.scheduler.node_cache import NodeInfo, PodUsage, compute_pod_usage
from volplane.scheduler.profile import DEFAULT_PROFILE, SchedulerProfile, ScoreWeights
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot
from volplane.scheduler.volumes import Bindings, bindings_on, sort_claims

EARLY = 0.001  # seconds by which a timer may fire early
RETRY = 300.0  # seconds until an unschedulable pod is retried without any change
NO_NODES = "no nodes available to schedule pods"

SCALE = scores.SCALE
POINT = SCALE // 100  # of a preferred affinity, which has at most 100


class Placement(Struct, frozen=True):
    node: str
    bindings: Bindings
    searched: int  # nodes that were checked


class Unschedulable(Struct, frozen=True):
    message: str  # of the event and of the condition PodScheduled
    by: frozenset[str]  # the filters that refused
    reasons: Mapping[str, tuple[str, ...]] = {}  # by node
    filters: Mapping[str, str] = {}  # by node: the filter that refused it
    evict: preemption.PreemptionCandidate | None = None  # the pods to evict first
    waiting: bool = False  # victims of an earlier preemption are still terminating
    summary: str = ""  # the message without what it says about preemption


class Reservation(Struct, frozen=True):
    """A node is chosen for the pod, and its volumes are being bound."""

    uid: str  # of the pod
    node: str
    bindings: Bindings
    deadline: float
    written: bool = False  # the bindings
    bound: bool = False  # the pod is bound; the caches will show it

    @property
    def to_select(self) -> tuple[PersistentVolumeClaim, ...]:
        """Claims without this selected-node annotation."""
        claims = self.bindings.dynamic
        return tuple(c for c in claims if c.metadata.annotations.get(SELECTED_NODE_ANNOTATION) != self.node)


class SchedulingView(Struct, frozen=True):
    """A pod without a node, and what the decision depends on."""

    key: str
    pod: Pod | None  # None: it is gone, or belongs to another scheduler
    snapshot: SchedulingSnapshot
    node: Callable[[str], Node | None]
    claim_bindings: Callable[
        [Bindings], Sequence[prebind.ClaimBinding]
    ]  # the pod's claims and volumes as the caches show them
    reservation: Reservation | None = None
    now: float = 0.0
    pause: float = 0.0  # seconds left of the backoff after a refusal
    start: int = 0  # index of the first node to check
    profile: SchedulerProfile = DEFAULT_PROFILE  # of the pod


class ReserveNode(Struct, frozen=True):
    """Reserve the node's resources for the pod before any other pod is planned."""

    reservation: Reservation
    searched: int  # nodes that were checked


class ReleaseReservation(Struct, frozen=True):
    """The pod is gone: free what was reserved for it."""


class WriteBindings(Struct, frozen=True):
    """Write claimRefs and selected nodes."""

    reservation: Reservation


class BindPod(Struct, frozen=True):
    reservation: Reservation


class AbortReservation(Struct, frozen=True):
    why: str


class MarkUnschedulable(Struct, frozen=True):
    """No node fits: write the condition, and evict other pods if that makes room."""

    refusal: Unschedulable


Step = ReserveNode | ReleaseReservation | WriteBindings | BindPod | AbortReservation | MarkUnschedulable


def plan(view: SchedulingView) -> Iterator[Step | CommonStep]:
    pod, reservation = view.pod, view.reservation
    if pod is None or pod.spec.scheduling_gates or (reservation is not None and reservation.uid != pod.uid):
        if reservation is not None:
            yield ReleaseReservation()
            yield Requeue(view.key)
        if pod is not None and pod.spec.scheduling_gates:
            gates = tuple(gate.name for gate in pod.spec.scheduling_gates)
            yield Wait(WaitReason.SCHEDULING_GATES, WaitData(names=gates))
        return
    if reservation is None:
        if view.pause > EARLY:
            yield Wait(WaitReason.SCHEDULING_BACKOFF, seconds=view.pause)
            return
        decision = decide(pod, view.snapshot, start=view.start, profile=view.profile)
        if isinstance(decision, Unschedulable):
            yield Wait(WaitReason.UNSCHEDULABLE, seconds=RETRY, message=decision.message)
            yield MarkUnschedulable(decision)
            return
        deadline = view.now + view.profile.bind_timeout
        reservation = Reservation(pod.uid, decision.node, decision.bindings, deadline)
        yield ReserveNode(reservation, decision.searched)
    if not reservation.bound:
        yield from _bind(view, reservation)


def _bind(view: SchedulingView, reservation: Reservation) -> Iterator[Step | CommonStep]:
    node = view.node(reservation.node)
    if node is None:
        yield AbortReservation(f'node "{reservation.node}" not found')
        return
    if not reservation.written and (reservation.bindings.static or reservation.to_select):
        yield WriteBindings(reservation)
        yield Requeue(view.key)  # planned again when the caches show what was written
        return
    state = prebind.check_binding(node, view.claim_bindings(reservation.bindings))
    match state:
        case prebind.BindingAborted(why):
            yield AbortReservation(prebind.FAILED.format(why))
        case prebind.BindingInProgress(claim):
            left = reservation.deadline - view.now
            if left > EARLY:
                data = WaitData(claim=claim, node=reservation.node)
                yield Wait(WaitReason.VOLUME_BINDING, data, left)
            else:
                yield AbortReservation(prebind.FAILED.format(prebind.TIMED_OUT))
        case prebind.BindingReady():
            yield BindPod(reservation)
        case _:
            assert_never(state)


def decide(
    pod: Pod, snapshot: SchedulingSnapshot, *, start: int = 0, profile: SchedulerProfile = DEFAULT_PROFILE
) -> Placement | Unschedulable:
    """Choose a node. `start`: the index of the first node to check."""
    cache = snapshot.node_cache.with_nominated(pod)
    if cache is not snapshot.node_cache:
        snapshot = structs.replace(snapshot, node_cache=cache)
    nodes = cache.nodes
    if not nodes:
        return Unschedulable(NO_NODES, frozenset({"NodeName"}), summary=NO_NODES)
    checks: list[tuple[str, NodeCheck]] = []
    for filter in profile.filters:
        prepared = filter.prepare(pod, snapshot)
        if isinstance(prepared, PodRefusal):
            summary = f"0/{len(nodes)} nodes are available: {prepared.message}"
            return Unschedulable(f"{summary}. not found", frozenset({filter.name}), summary=summary)
        if prepared is not None:
            checks.append((filter.name, prepared))
    cleared = snapshot.node_cache.find_node(snapshot.node_cache.nominated_node(pod.key))
    if cleared is not None and _check_node(cleared, checks) is None:
        return _placement(pod, cleared, snapshot, profile, 0)  # victims were evicted for this pod
    fitting, refused, searched = _find_feasible_nodes(
        nodes, checks, start % len(nodes), profile.most_feasible(len(nodes))
    )
    if not fitting:
        return _refusal(pod, snapshot, refused, profile)
    best = fitting[0] if len(fitting) == 1 else _select_best_node(pod, fitting, snapshot, profile.weights)
    return _placement(pod, best, snapshot, profile, searched)


def _placement(
    pod: Pod, info: NodeInfo, snapshot: SchedulingSnapshot, profile: SchedulerProfile, searched: int
) -> Placement:
    if not profile.binds_volumes:
        return Placement(info.name, Bindings(), searched)
    claims = sort_claims(pod, snapshot)
    assert not isinstance(claims, str), "VolumeBinding has refused such a pod"
    return Placement(info.name, bindings_on(info, claims), searched)


def _refusal(
    pod: Pod,
    snapshot: SchedulingSnapshot,
    refused: Mapping[str, tuple[str, NodeRefusal]],
    profile: SchedulerProfile,
) -> Unschedulable:
    def fits(trial: SchedulingSnapshot, info: NodeInfo) -> NodeRefusal | None:
        for filter in profile.filters:
            check = filter.prepare(pod, trial)
            no = (
                NodeRefusal((check.message,))
                if isinstance(check, PodRefusal)
                else check(info)
                if check
                else None
            )
            if no is not None:
                return no
        return None

    nos = {node: no for node, (_, no) in refused.items()}
    by = frozenset(name for name, _ in refused.values())
    reasons = {node: no.reasons for node, no in nos.items()}
    whose = {node: name for node, (name, _) in refused.items()}
    summary = summarize_refusals(nos.values())
    if not profile.preempts:
        return Unschedulable(f"{summary}.", by, reasons, whose, summary=summary)
    found = preemption.find_preemption(pod, snapshot, nos, fits)
    if isinstance(found, preemption.PreemptionCandidate):
        return Unschedulable(f"{summary}.", by, reasons, whose, evict=found, summary=summary)
    message = f"{summary}. no new claims to deallocate, preemption: {found.text}"
    return Unschedulable(message, by, reasons, whose, waiting=found.waiting, summary=summary)


def _find_feasible_nodes(
    nodes: Sequence[NodeInfo], checks: Sequence[tuple[str, NodeCheck]], start: int, most: int
) -> tuple[list[NodeInfo], dict[str, tuple[str, NodeRefusal]], int]:
    fitting: list[NodeInfo] = []
    refused: dict[str, tuple[str, NodeRefusal]] = {}
    count = len(nodes)
    for at in range(start, start + count):
        info = nodes[at % count]
        verdict = _check_node(info, checks)
        if verdict is not None:
            refused[info.name] = verdict
            continue
        fitting.append(info)
        if len(fitting) == most:
            return fitting, refused, at - start + 1
    return fitting, refused, count


def _check_node(info: NodeInfo, checks: Sequence[tuple[str, NodeCheck]]) -> tuple[str, NodeRefusal] | None:
    for name, check in checks:
        no = check(info)
        if no is not None:
            return name, no
    return None


# --- comparing


def _select_best_node(
    pod: Pod, nodes: Sequence[NodeInfo], snapshot: SchedulingSnapshot, weights: ScoreWeights
) -> NodeInfo:
    """The node with the most free resources, plus affinity and spread scores; ties are broken by name."""
    taken = compute_pod_usage(pod)
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()

    company, spread = (
        scores.score_pod_affinity(pod, snapshot, nodes),
        scores.score_topology_spread(pod, snapshot, nodes),
    )

    def rank(at: int) -> tuple[int, int, str]:
        info = nodes[at]
        points = weights.resources * free_share(info, taken)
        points += weights.pod_affinity * company[at] if company else 0
        points += weights.spread * spread[at] if spread else 0
        if info.taints:
            soft = (taints.PREFER_NO_SCHEDULE,)
            avoided = (
                t for t in info.taints if taints.find_untolerated_taint((t,), pod.spec.tolerations, soft)
            )
            points -= weights.taints * SCALE * sum(1 for _ in avoided)
        for term in preferred:
            if topology.meets_term(term.preference, info.labels, info.name):
                points += weights.node_affinity * POINT * term.weight
        return -points, len(info.pods), info.name

    return nodes[min(range(len(nodes)), key=rank)]


def free_share(info: NodeInfo, taken: PodUsage) -> int:
    """The free share of CPU and memory with the pod, out of SCALE."""
    cpu = info.allocatable.get("cpu", 0)
    memory = info.allocatable.get("memory", 0)
    left_cpu = max(cpu - info.cpu - taken.cpu, 0) * SCALE // cpu if cpu else 0
    left_memory = max(memory - info.memory - taken.memory, 0) * SCALE // memory if memory else 0
    return (left_cpu + left_memory) // 2


def summarize_refusals(refused: Collection[NodeRefusal]) -> str:
    """Each reason with the number of nodes that gave it."""
    reasons = Counter(reason for refusal in refused for reason in refusal.reasons)
    return f"0/{len(refused)} nodes are available: {preemption.list_reasons(reasons)}"
