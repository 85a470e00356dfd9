"""Which nodes run the daemon, and which pods are missing, surplus or out of date.

A daemon's pod is scheduled like any other, bound to its node by an affinity on `metadata.name`, so that
taints and limits are checked in one place. A daemon tolerates the taints that node conditions bring.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct, structs

from volplane.api.apps import DaemonSet, DaemonSetStatus
from volplane.api.core import (
    Affinity,
    Node,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    Toleration,
)
from volplane.api.selectors import LabelMatcher
from volplane.rules.adoption import AdoptionStep, claim_objects
from volplane.rules.pods import has_ended
from volplane.rules.taints import (
    DISK_PRESSURE,
    MEMORY_PRESSURE,
    NETWORK_UNAVAILABLE,
    NOT_READY,
    PID_PRESSURE,
    UNREACHABLE,
    UNSCHEDULABLE,
    find_untolerated_taint,
)
from volplane.rules.topology import selects
from volplane.rules.waits import Wait
from volplane.rules.workloads import (
    CreatePod,
    DeletePod,
    availability,
    available_in,
    fraction_of,
    is_ready,
    pod_of,
    template_hash,
)

HASH_LABEL = "controller-revision-hash"
GENERATION_LABEL = "pod-template-generation"
_TOLERATED = (
    (NOT_READY, "NoExecute"),
    (UNREACHABLE, "NoExecute"),
    (DISK_PRESSURE, "NoSchedule"),
    (MEMORY_PRESSURE, "NoSchedule"),
    (PID_PRESSURE, "NoSchedule"),
    (UNSCHEDULABLE, "NoSchedule"),
)


class SetDaemonSetStatus(Struct, frozen=True):
    status: DaemonSetStatus


Step = AdoptionStep | CreatePod | DeletePod | SetDaemonSetStatus


def plan(
    wanted: DaemonSet,
    nodes: Sequence[Node],
    owned: Sequence[Pod],
    now: datetime,
    orphans: Sequence[Pod] = (),
) -> Iterator[Step | Wait]:
    """Steps for a daemon set, all nodes, the pods it controls, and those that nothing controls."""
    claimed = claim_objects(wanted, selector_of(wanted), owned, orphans)
    yield from claimed.steps
    pods = claimed.objects
    placed: dict[str, list[Pod]] = {}
    for pod in pods:
        placed.setdefault(target_of(pod), []).append(pod)
    eligible = [n for n in nodes if is_eligible(wanted, n)]
    names = {n.name for n in eligible}
    if not wanted.is_deleting:
        yield from _missing(wanted, eligible, placed)
        yield from _surplus(names, placed)
        yield from _replace_outdated(wanted, names, placed, now)
    status = current_status(wanted, names, placed, now)
    if status != wanted.status:
        yield SetDaemonSetStatus(status)
    yield from availability(pods, wanted.spec.min_ready_seconds, now)


def selector_of(wanted: DaemonSet) -> LabelMatcher:
    return LabelMatcher.of(wanted.spec.selector)


def is_eligible(wanted: DaemonSet, node: Node) -> bool:
    spec = wanted.spec.template.spec
    tolerations = (*spec.tolerations, *daemon_tolerations(spec))
    if find_untolerated_taint(node.spec.taints, tolerations) is not None:
        return False
    labels = node.metadata.labels
    if not spec.node_selector.items() <= labels.items():
        return False
    affinity = spec.affinity and spec.affinity.node_affinity
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return required is None or selects(required, labels, node.name)


def daemon_tolerations(spec: PodSpec) -> tuple[Toleration, ...]:
    made = [Toleration(key=key, operator="Exists", effect=effect) for key, effect in _TOLERATED]
    if spec.host_network:
        key = NETWORK_UNAVAILABLE
        made.append(Toleration(key=key, operator="Exists", effect="NoSchedule"))
    return tuple(made)


def target_of(pod: Pod) -> str:
    """The node a daemon pod is for, also before it is bound."""
    if pod.spec.node_name:
        return pod.spec.node_name
    required = pod.spec.affinity and pod.spec.affinity.node_affinity
    selector = required.required_during_scheduling_ignored_during_execution if required else None
    terms = selector.node_selector_terms if selector else ()
    return next((f.values[0] for t in terms for f in t.match_fields if f.key == "metadata.name"), "")


def daemon_pod(wanted: DaemonSet, node: str) -> Pod:
    template = wanted.spec.template
    labels = {HASH_LABEL: revision_of(wanted), GENERATION_LABEL: str(wanted.metadata.generation)}
    pod = pod_of(template, wanted, labels=labels)
    spec = structs.replace(
        pod.spec,
        affinity=_bind_to_node(pod.spec.affinity or Affinity(), node),
        tolerations=(*pod.spec.tolerations, *daemon_tolerations(pod.spec)),
    )
    return structs.replace(pod, spec=spec)


def _bind_to_node(affinity: Affinity, node: str) -> Affinity:
    """The affinity with every required term narrowed to one node."""
    only = NodeSelectorRequirement(key="metadata.name", operator="In", values=(node,))
    held = affinity.node_affinity or NodeAffinity()
    selector = held.required_during_scheduling_ignored_during_execution
    terms = selector.node_selector_terms if selector else (NodeSelectorTerm(),)
    tied = tuple(structs.replace(t, match_fields=(*t.match_fields, only)) for t in terms)
    required = NodeSelector(node_selector_terms=tied)
    held = structs.replace(held, required_during_scheduling_ignored_during_execution=required)
    return structs.replace(affinity, node_affinity=held)


def revision_of(wanted: DaemonSet) -> str:
    return template_hash(wanted.spec.template, wanted.status.collision_count or 0)


def _missing(
    wanted: DaemonSet, eligible: Sequence[Node], placed: Mapping[str, list[Pod]]
) -> Iterator[CreatePod]:
    for node in eligible:
        if not placed.get(node.name):
            yield CreatePod(daemon_pod(wanted, node.name))


def _surplus(names: set[str], placed: Mapping[str, list[Pod]]) -> Iterator[DeletePod]:
    for node, pods in placed.items():
        alive = sorted((p for p in pods if not p.is_deleting), key=lambda p: (not is_ready(p), p.name))
        done = [p for p in alive if has_ended(p)]
        keep = [p for p in alive if not has_ended(p)][:1] if node in names else []
        yield from (DeletePod(p) for p in alive if p not in keep or p in done)


def _replace_outdated(
    wanted: DaemonSet, names: set[str], placed: Mapping[str, list[Pod]], now: datetime
) -> Iterator[DeletePod]:
    """Rolling update: delete old pods while at most maxUnavailable are missing."""
    if wanted.spec.update_strategy.type == "OnDelete":
        return
    rolling = wanted.spec.update_strategy.rolling_update
    allowed = fraction_of(rolling.max_unavailable if rolling else None, len(names), round_up=True, default=1)
    current = revision_of(wanted)
    serving = {n: next((p for p in placed.get(n, ()) if not p.is_deleting), None) for n in names}
    enough = wanted.spec.min_ready_seconds
    away = sum(p is None or available_in(p, enough, now) > 0 for p in serving.values())
    for pod in serving.values():
        if pod is None or pod.metadata.labels.get(HASH_LABEL) == current:
            continue
        if not is_ready(pod):
            yield DeletePod(pod)
        elif away < allowed:
            away += 1
            yield DeletePod(pod)


def current_status(
    wanted: DaemonSet, names: set[str], placed: Mapping[str, list[Pod]], now: datetime
) -> DaemonSetStatus:
    serving = [p for n in names for p in placed.get(n, ())[:1]]
    ready = sum(is_ready(p) for p in serving)
    available = sum(available_in(p, wanted.spec.min_ready_seconds, now) == 0 for p in serving)
    return DaemonSetStatus(
        current_number_scheduled=len(serving),
        number_misscheduled=sum(len(p) for n, p in placed.items() if n not in names),
        desired_number_scheduled=len(names),
        number_ready=ready,
        observed_generation=wanted.metadata.generation,
        updated_number_scheduled=sum(
            p.metadata.labels.get(HASH_LABEL) == revision_of(wanted) for p in serving
        ),
        number_available=available,
        number_unavailable=len(names) - available,
        collision_count=wanted.status.collision_count,
        conditions=wanted.status.conditions,
    )
