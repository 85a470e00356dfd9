"""A pod without a node: the scheduler's own plan for it, and each node's refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from msgspec import structs

from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import CSIDriver, CSINode, CSIStorageCapacity, StorageClass
from volplane.controllers.binder.controller import Binder
from volplane.explain import claims
from volplane.explain.claims import check_again
from volplane.explain.cluster_state import ClusterState, parse_time
from volplane.explain.result import Explanation, ExplanationStep, waiting_step
from volplane.rules import pods, resources, taints, topology
from volplane.rules.binding import is_bound
from volplane.rules.waits import Wait, WaitReason
from volplane.scheduler.controller import Scheduler
from volplane.scheduler.node_cache import NodeInfo
from volplane.scheduler.plan import MarkUnschedulable, ReserveNode, Unschedulable, plan
from volplane.scheduler.profile import DEFAULT

MAX_NODES = 12  # listed by name
# The kinds that the filters read. Without permission to read them, only the scheduler's messages are left.
READ_BY_FILTERS = (
    Pod,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    CSINode,
    CSIDriver,
    CSIStorageCapacity,
)


async def explain(
    state: ClusterState, pod: Pod, *, above: PersistentVolumeClaim | None = None
) -> Explanation:
    """`above`: the claim that is being explained already."""
    scheduler = await state.load_controller(Scheduler)
    steps = list(plan(scheduler.view_pod(pod.key, pod)))
    wait = next((step for step in steps if isinstance(step, Wait)), None)
    what, who, since = f"find a node for pod {pod.name}", pod.spec.scheduler_name or DEFAULT, _since(pod)
    if wait is not None and wait.reason is WaitReason.SCHEDULING_GATES:
        gated = waiting_step(what, "the owner of the scheduling gates", wait, since=since)
        return Explanation((gated,), ("remove spec.schedulingGates of the pod when it may run",))
    if await state.cannot_read(*READ_BY_FILTERS):
        return Explanation((_explain_from_condition(pod, what, who),))
    for step in steps:
        match step:
            case MarkUnschedulable(decision):
                assert wait is not None
                explanation = _explain_refusal(state, pod, scheduler, decision, wait, what, who)
                break
            case ReserveNode(reservation):
                explanation = _explain_placement(state, pod, reservation.node, wait, who)
                break
    else:
        explanation = Explanation()
    # The claims come first: a pod that waits for a claim waits for whatever the claim waits for.
    return await _explain_claims(state, pod, scheduler, above) + explanation


def _since(pod: Pod) -> datetime | None:
    conditions = (c for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False")
    found = next(conditions, None)
    return parse_time(found.last_transition_time if found else pod.metadata.creation_timestamp)


def _explain_from_condition(pod: Pod, what: str, who: str) -> ExplanationStep:
    """Without permission to read nodes, only the condition that the scheduler wrote is left."""
    message = next((c.message for c in pod.status.conditions if c.type == "PodScheduled"), "")
    reasons = message.partition(". ")[0].rstrip(".")  # what follows is about preemption
    why = reasons or "the scheduler has written no message, and nodes may not be read"
    return waiting_step(what, who, why, since=_since(pod))


# --- no node fits


def _explain_refusal(
    state: ClusterState,
    pod: Pod,
    scheduler: Scheduler,
    decision: Unschedulable,
    wait: Wait,
    what: str,
    who: str,
) -> Explanation:
    details = _group_by_reason(pod, scheduler, decision)
    step = waiting_step(what, who, wait, since=_since(pod), details=details)
    step = state.roles.add_times(step, Scheduler.name, pod.key, wait)
    advice = []
    if decision.evict is not None:
        victims = ", ".join(victim.key for victim in decision.evict.victims)
        advice.append(f"nothing: the scheduler evicts {victims} from {decision.evict.node} for it")
    advice += dict.fromkeys(_ADVICE[name] for name in decision.filters.values() if name in _ADVICE)
    return Explanation((structs.replace(step, why=decision.summary),), tuple(advice))


def _group_by_reason(pod: Pod, scheduler: Scheduler, decision: Unschedulable) -> Iterator[str]:
    """One line for all nodes that the same filter refuses for the same reasons."""
    groups: dict[tuple[str, str], list[str]] = {}
    for node, reasons in sorted(decision.reasons.items()):
        info = scheduler.memory.node_cache.find_node(node)
        name = decision.filters.get(node, "")
        detail = _DETAILS[name](pod, info, scheduler) if info is not None and name in _DETAILS else ""
        text = ", ".join(reasons) + (f" ({detail})" if detail else "")
        groups.setdefault((name, text), []).append(node)
    for (name, text), nodes in groups.items():
        more = f" and {len(nodes) - MAX_NODES} more" if len(nodes) > MAX_NODES else ""
        yield f"{', '.join(nodes[:MAX_NODES])}{more}: {text} [{name}]"


def _describe_taint(pod: Pod, info: NodeInfo, scheduler: Scheduler) -> str:
    found = taints.find_untolerated_taint(info.taints, pod.spec.tolerations)
    if found is None:
        return ""
    return f"{found.key}{f'={found.value}' if found.value else ''}:{found.effect}"


def _describe_resources(pod: Pod, info: NodeInfo, scheduler: Scheduler) -> str:
    short = []
    for name, amount in resources.requests(pod).items():
        free = info.allocatable.get(name, 0) - info.requested[name]
        if amount > free:
            unit = "m" if name == resources.CPU else ""
            short.append(f"{name}: requests {amount}{unit}, {max(free, 0)}{unit} free")
    return "; ".join(short)


def _describe_unreachable_volumes(pod: Pod, info: NodeInfo, scheduler: Scheduler) -> str:
    """The pod's volumes that are not reachable from the node, and where they are."""
    far = (v for v in _volumes(pod, scheduler) if not topology.is_reachable_from(v, info.labels))
    return "; ".join(f"{volume.name} is in {_describe_node_affinity(volume)}" for volume in far)


def _volumes(pod: Pod, scheduler: Scheduler) -> Iterator[PersistentVolume]:
    for use in pods.claim_uses(pod):
        claim = scheduler.claims.get(use.claim, pod.namespace)
        volume = scheduler.volumes.get(claim.spec.volume_name) if claim is not None else None
        if volume is not None:
            yield volume


def _describe_node_affinity(volume: PersistentVolume) -> str:
    required = volume.spec.node_affinity.required if volume.spec.node_affinity else None
    terms = required.node_selector_terms if required else ()
    return " or ".join(
        " and ".join(f"{r.key} {r.operator} {', '.join(r.values)}".strip() for r in term.match_expressions)
        for term in terms
    )


_DETAILS: Mapping[str, Callable[[Pod, NodeInfo, Scheduler], str]] = {
    "TaintToleration": _describe_taint,
    "NodeResourcesFit": _describe_resources,
    "VolumeBinding": _describe_unreachable_volumes,
}
_ADVICE = {
    "NodeUnschedulable": "kubectl uncordon a node",
    "TaintToleration": "remove the taint (kubectl taint node NODE KEY-), or add a toleration to the pod",
    "NodeAffinity": "label a node so that it matches the pod's nodeSelector or affinity, or change the pod",
    "NodeResourcesFit": "free resources: delete pods, request less, or add a node",
    "NodeVolumeLimits": "the driver's volume limit of the node is reached: delete pods there, or add a node",
    "VolumeRestrictions": "another pod uses the ReadWriteOncePod claim: delete that pod first",
    "VolumeBinding": "add a node from which the pod's volumes are reachable, or use other volumes",
    "VolumeZone": "add a node in the zone of the pod's volumes",
}


# --- a node fits


def _explain_placement(state: ClusterState, pod: Pod, node: str, wait: Wait | None, who: str) -> Explanation:
    what, since = f"bind pod {pod.name} to {node}", _since(pod)
    if wait is not None:
        step = waiting_step(what, who, wait, since=since, ends="scheduled again")
        return Explanation((state.roles.add_times(step, Scheduler.name, pod.key, wait),))
    why = (
        f"the pod fits on {node}; the scheduler has not bound it yet"
        if who == DEFAULT
        else f"{who} has not bound it; by the filters of the default scheduler it fits on {node}"
    )
    return Explanation((waiting_step(what, who, why, since=since),), (check_again("the scheduler"),))


async def _explain_claims(
    state: ClusterState, pod: Pod, scheduler: Scheduler, above: PersistentVolumeClaim | None
) -> Explanation:
    """What the pod's claims wait for, unless they wait for the pod."""
    from volplane.explain.mounting import explain_missing_claim

    explanation = Explanation()
    for use in pods.claim_uses(pod):
        claim = scheduler.claims.get(use.claim, pod.namespace)
        if claim is None:
            advice = () if use.ephemeral else (f"create claim {use.claim} in namespace {pod.namespace}",)
            explanation += Explanation((explain_missing_claim(pod, use),), advice)
        elif above is not None and claim.key == above.key:
            continue
        elif claim.is_deleting or not is_bound(claim):
            explanation += await _explain_claim(state, claim)
    return explanation


async def _explain_claim(state: ClusterState, claim: PersistentVolumeClaim) -> Explanation:
    binder = await state.load_controller(Binder)
    if claims.waits_for_pod(claim, binder):
        return Explanation()  # it waits for this pod
    found = await claims.explain(state, claim)
    return Explanation(tuple(_prefix_claim_name(claim, step) for step in found.steps), found.advice)


def _prefix_claim_name(claim: PersistentVolumeClaim, step: ExplanationStep) -> ExplanationStep:
    return structs.replace(step, what=f"claim {claim.name}: {step.what}")
