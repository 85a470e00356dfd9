"""PodTopologySpread: domains (zones, nodes) get about the same number of matching pods.

Only nodes that the pod could use make up domains, so that an empty zone which it cannot use does not keep it
out of the others. Terminating pods are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec import Struct

from volplane.api.core import Node, Pod, TopologySpreadConstraint
from volplane.api.selectors import LabelMatcher, LabelRequirement, Operator
from volplane.rules import taints, topology
from volplane.scheduler.filters.base import Filter, NodeCheck, NodeRefusal
from volplane.scheduler.node_cache import NodeInfo
from volplane.scheduler.pod_affinity_index import CombinedPodSelector, PodSelector
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

DO_NOT_SCHEDULE, SCHEDULE_ANYWAY = "DoNotSchedule", "ScheduleAnyway"
SKEWED = NodeRefusal(("node(s) didn't match pod topology spread constraints",), final=False)
NO_LABEL = NodeRefusal(("node(s) didn't match pod topology spread constraints (missing required label)",))


class CountedConstraint(Struct, frozen=True):
    """A constraint with its counts."""

    key: str
    counts: Counter[str]  # pods in each domain that the pod could use, empty ones too
    max_pods: int  # pods that a domain may have before this one is added


def selector_of_constraint(constraint: TopologySpreadConstraint, pod: Pod) -> CombinedPodSelector:
    labels = pod.metadata.labels
    own = [LabelRequirement(k, Operator.IN, (labels[k],)) for k in constraint.match_label_keys if k in labels]
    selector = LabelMatcher((*LabelMatcher.of(constraint.label_selector).requirements, *own))
    return CombinedPodSelector(
        (PodSelector(selector, frozenset((pod.namespace,))),), ignores_terminating=True
    )


def is_counted_for(constraint: TopologySpreadConstraint, pod: Pod) -> Callable[[NodeInfo], bool]:
    """Whether a node counts for the constraint."""
    picky = (constraint.node_affinity_policy or "Honor") == "Honor"
    shy = (constraint.node_taints_policy or "Ignore") == "Honor"
    labels = pod.spec.node_selector.items()
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None

    def counts(info: NodeInfo) -> bool:
        if picky and labels and not labels <= info.labels.items():
            return False
        if picky and required is not None and not topology.selects(required, info.labels, info.name):
            return False
        return not shy or taints.find_untolerated_taint(info.taints, pod.spec.tolerations) is None

    return counts


def prepare(pod: Pod, snapshot: SchedulingSnapshot) -> NodeCheck | None:
    hard = [c for c in pod.spec.topology_spread_constraints if c.when_unsatisfiable == DO_NOT_SCHEDULE]
    if not hard:
        return None
    keys = {c.topology_key for c in hard}
    labelled = [info for info in snapshot.node_cache.nodes if keys <= info.labels.keys()]
    bounds = [_count_constraint(c, pod, snapshot, labelled) for c in hard]

    def check(info: NodeInfo) -> NodeRefusal | None:
        for bound in bounds:
            value = info.labels.get(bound.key)
            if value is None:
                return NO_LABEL
            if bound.counts[value] > bound.max_pods:
                return SKEWED
        return None

    return check


def _count_constraint(
    constraint: TopologySpreadConstraint, pod: Pod, snapshot: SchedulingSnapshot, nodes: list[NodeInfo]
) -> CountedConstraint:
    group = selector_of_constraint(constraint, pod)
    key, counts = constraint.topology_key, Counter[str]()
    held = snapshot.node_cache.count_pods(group)
    may = is_counted_for(constraint, pod)
    for info in nodes:
        if may(info):
            counts[info.labels[key]] += held.get(info.name, 0)
    few = len(counts) < (constraint.min_domains or 1)
    least = 0 if few or not counts else min(counts.values())
    itself = 1 if snapshot.node_cache.affinity_index.matches_combined(pod, group) else 0
    return CountedConstraint(key, counts, least + constraint.max_skew - itself)


FILTER = Filter("PodTopologySpread", prepare, frozenset({Node, Pod}))
