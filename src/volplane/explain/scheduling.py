"""A pod without a node: the scheduler's own decision, run on what there is, and each node's refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from msgspec import structs

from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import CSIDriver, CSINode, CSIStorageCapacity, StorageClass
from volplane.controllers.binder.controller import Binder
from volplane.explain import claims
from volplane.explain.cluster_state import ClusterState, parse_time
from volplane.explain.result import Explanation, ExplanationStep, waiting_step
from volplane.rules import pods, resources, taints, topology
from volplane.rules.binding import SELECTED_NODE, is_bound
from volplane.scheduler import prebind
from volplane.scheduler.controller import DEFAULT, Scheduler
from volplane.scheduler.node_cache import NodeInfo
from volplane.scheduler.plan import Placement, Unschedulable, decide

MANY = 12  # nodes that are named one by one
# What the filters go by: who may not read all of it is told what the scheduler has said.
ASKED = (
    Pod,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    CSINode,
    CSIDriver,
    CSIStorageCapacity,
)


async def story(scene: ClusterState, pod: Pod, *, above: PersistentVolumeClaim | None = None) -> Explanation:
    """`above`: the claim whose explanation asks, which is not explained again."""
    what, since = f"find a node for pod {pod.name}", _since(pod)
    if pod.spec.scheduling_gates:
        gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
        held = waiting_step(what, "whoever put the gates there", f"scheduling gates: {gates}", since=since)
        return Explanation((held,), ("remove its spec.schedulingGates when it may run",))
    if await scene.cannot_read(*ASKED):
        return Explanation((_explain_from_events(pod, what),))
    scheduler = await scene.load_controller(Scheduler)
    name = pod.spec.scheduler_name or DEFAULT
    decision = decide(pod, scheduler.world)
    if isinstance(decision, Unschedulable):
        told = _explain_refusal(scene, pod, scheduler, decision, name)
    else:
        told = _explain_placement(scene, pod, scheduler, decision, name)
    # The claims come first: a pod that waits for one waits for what that one waits for.
    return await _explain_claims(scene, pod, scheduler, above) + told


def _since(pod: Pod) -> datetime | None:
    told = next((c for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False"), None)
    return parse_time(told.last_transition_time if told else pod.metadata.creation_timestamp)


def _explain_from_events(pod: Pod, what: str) -> ExplanationStep:
    """Who may not read nodes cannot ask the filters, only read what the scheduler wrote."""
    told = next((c.message for c in pod.status.conditions if c.type == "PodScheduled"), "")
    why = told.partition(". ")[0].rstrip(".") or "the scheduler has said nothing, and nodes may not be read"
    return waiting_step(what, pod.spec.scheduler_name or DEFAULT, why, since=_since(pod))


# --- no node will have it


def _explain_refusal(
    scene: ClusterState, pod: Pod, scheduler: Scheduler, refusal: Unschedulable, who: str
) -> Explanation:
    step = waiting_step(
        f"find a node for pod {pod.name}",
        who,
        refusal.message,
        since=_since(pod),
        details=_group_by_reason(pod, scheduler, refusal),
    )
    step = scene.roles.add_times(step, Scheduler.name, pod.key)
    # What follows the reasons speaks of preemption, which is rarely news to whoever waits.
    step = structs.replace(step, why=refusal.message.partition(". ")[0].rstrip("."))
    advice = []
    if refusal.evict is not None:
        victims = ", ".join(victim.key for victim in refusal.evict.victims)
        advice.append(f"nothing: room is made on {refusal.evict.node} by evicting {victims}")
    advice += dict.fromkeys(_ADVICE[name] for name in refusal.filters.values() if name in _ADVICE)
    return Explanation((step,), tuple(advice))


def _group_by_reason(pod: Pod, scheduler: Scheduler, refusal: Unschedulable) -> Iterator[str]:
    """Nodes that are refused for the same reasons by the same filter go together."""
    alike: dict[tuple[str, str], list[str]] = {}
    for node, reasons in sorted(refusal.reasons.items()):
        info = scheduler.memory.ledger.find_node(node)
        name = refusal.filters.get(node, "")
        more = _MORE[name](pod, info, scheduler) if info is not None and name in _MORE else ""
        text = ", ".join(reasons) + (f" ({more})" if more else "")
        alike.setdefault((name, text), []).append(node)
    for (name, text), nodes in alike.items():
        rest = f" and {len(nodes) - MANY} more" if len(nodes) > MANY else ""
        yield f"{', '.join(nodes[:MANY])}{rest}: {text} [{name}]"


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
            short.append(f"{name}: wants {amount}{unit}, {max(free, 0)}{unit} left")
    return "; ".join(short)


def _describe_unreachable_volumes(pod: Pod, info: NodeInfo, scheduler: Scheduler) -> str:
    """Which of the pod's volumes cannot be reached from the node, and where it can."""
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


_MORE: Mapping[str, Callable[[Pod, NodeInfo, Scheduler], str]] = {
    "TaintToleration": _describe_taint,
    "NodeResourcesFit": _describe_resources,
    "VolumeBinding": _describe_unreachable_volumes,
}
_ADVICE = {
    "NodeUnschedulable": "kubectl uncordon a node that may take pods again",
    "TaintToleration": "remove the taint (kubectl taint node NODE KEY-), or let the pod tolerate it",
    "NodeAffinity": "label a node as the pod's nodeSelector or affinity asks, or change what it asks",
    "NodeResourcesFit": "make room: fewer or smaller pods, or another node",
    "NodeVolumeLimits": "a node takes only so many volumes of a driver: delete pods there, or add a node",
    "VolumeRestrictions": "a ReadWriteOncePod claim is used by another pod: delete that one first",
    "VolumeBinding": "a node is needed from where the pod's volumes can be reached, and that has room",
    "VolumeZone": "a node is needed in the zone of the pod's volumes",
}


# --- a node is chosen, or could be


def _explain_placement(
    scene: ClusterState, pod: Pod, scheduler: Scheduler, placement: Placement, who: str
) -> Explanation:
    pairs = scheduler.claim_bindings(placement.bindings)
    node = scheduler.nodes.get(placement.node)
    assert node is not None
    state = prebind.check_binding(node, pairs)
    selected = any(p.claim is not None and p.claim.metadata.annotations.get(SELECTED_NODE) for p in pairs)
    what = f"put pod {pod.name} on {placement.node}"
    if selected and isinstance(state, prebind.BindingInProgress):
        step = waiting_step(what, who, state.why, since=_since(pod), ends="given up and decided anew")
    elif who != DEFAULT:
        why = f"{who} has not placed it; by the default scheduler's filters it fits on {placement.node}"
        step = waiting_step(what, who, why, since=_since(pod))
    else:
        why = f"it fits on {placement.node}, and the scheduler has not put it there yet"
        step = waiting_step(what, who, why, since=_since(pod))
    timed = scene.roles.add_times(step, Scheduler.name, pod.key)
    advice = () if selected else ("look again in a second; if it stays so, see whether the scheduler runs",)
    return Explanation((timed,), advice)


async def _explain_claims(
    scene: ClusterState, pod: Pod, scheduler: Scheduler, above: PersistentVolumeClaim | None
) -> Explanation:
    """What the pod's claims wait for, as far as they do not wait for the pod."""
    told = Explanation()
    for use in pods.claim_uses(pod):
        claim = scheduler.claims.get(use.claim, pod.namespace)
        if claim is None:
            missing = f"claim {pod.namespace}/{use.claim} does not exist"
            maker = "ephemeral volume controller" if use.ephemeral else "you"
            hint = () if use.ephemeral else (f"create claim {use.claim} in namespace {pod.namespace}",)
            told += Explanation((waiting_step(f"volume {use.volume}", maker, missing),), hint)
        elif above is not None and claim.key == above.key:
            continue
        elif claim.is_deleting or not is_bound(claim):
            found = await _explain_claim(scene, claim)
            told += found
    return told


async def _explain_claim(scene: ClusterState, claim: PersistentVolumeClaim) -> Explanation:
    binder = await scene.load_controller(Binder)
    if claims.waits_for_pod(claim, binder):
        return Explanation()  # it waits for this pod
    found = await claims.story(scene, claim)
    return Explanation(tuple(_prefix_claim_name(claim, step) for step in found.steps), found.advice)


def _prefix_claim_name(claim: PersistentVolumeClaim, step: ExplanationStep) -> ExplanationStep:
    return structs.replace(step, what=f"claim {claim.name}: {step.what}")
