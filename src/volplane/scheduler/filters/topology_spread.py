"""PodTopologySpread: domains (zones, nodes) get about the same number of pods of a kind.

Only nodes that the pod could go to make up domains, so that an empty zone which it cannot
use does not keep it out of the others; and pods on their way out are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec import Struct

from volplane.api.core import Node, Pod, TopologySpreadConstraint
from volplane.api.selectors import Labels, Operator, Requirement
from volplane.rules import taints, topology
from volplane.scheduler.crowd import Group, Kind
from volplane.scheduler.filters.base import Check, Filter, No
from volplane.scheduler.ledger import Info
from volplane.scheduler.world import World

HARD, SOFT = "DoNotSchedule", "ScheduleAnyway"
SKEWED = No(("node(s) didn't match pod topology spread constraints",), final=False)
NO_LABEL = No(("node(s) didn't match pod topology spread constraints (missing required label)",))


class Bound(Struct, frozen=True):
    """One constraint, counted."""

    key: str
    counts: Counter[str]  # pods in each domain that the pod could use, empty ones too
    most: int  # pods that a domain may have before this one comes


def group_of(constraint: TopologySpreadConstraint, pod: Pod) -> Group:
    labels = pod.metadata.labels
    own = [Requirement(k, Operator.IN, (labels[k],)) for k in constraint.match_label_keys if k in labels]
    selector = Labels((*Labels.of(constraint.label_selector).requirements, *own))
    return Group((Kind(selector, frozenset((pod.namespace,))),), staying=True)


def usable(constraint: TopologySpreadConstraint, pod: Pod) -> Callable[[Info], bool]:
    """Whether a node counts for the constraint."""
    picky = (constraint.node_affinity_policy or "Honor") == "Honor"
    shy = (constraint.node_taints_policy or "Ignore") == "Honor"
    labels = pod.spec.node_selector.items()
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None

    def counts(info: Info) -> bool:
        if picky and labels and not labels <= info.labels.items():
            return False
        if picky and required is not None and not topology.selects(required, info.labels, info.name):
            return False
        return not shy or taints.untolerated(info.taints, pod.spec.tolerations) is None

    return counts


def prepare(pod: Pod, world: World) -> Check | None:
    hard = [c for c in pod.spec.topology_spread_constraints if c.when_unsatisfiable == HARD]
    if not hard:
        return None
    keys = {c.topology_key for c in hard}
    labelled = [info for info in world.ledger.nodes if keys <= info.labels.keys()]
    bounds = [_bound(c, pod, world, labelled) for c in hard]

    def check(info: Info) -> No | None:
        for bound in bounds:
            value = info.labels.get(bound.key)
            if value is None:
                return NO_LABEL
            if bound.counts[value] > bound.most:
                return SKEWED
        return None

    return check


def _bound(constraint: TopologySpreadConstraint, pod: Pod, world: World, nodes: list[Info]) -> Bound:
    group = group_of(constraint, pod)
    key, counts = constraint.topology_key, Counter[str]()
    held = world.ledger.count(group)
    may = usable(constraint, pod)
    for info in nodes:
        if may(info):
            counts[info.labels[key]] += held.get(info.name, 0)
    few = len(counts) < (constraint.min_domains or 1)
    least = 0 if few or not counts else min(counts.values())
    itself = 1 if world.ledger.crowd.is_in(pod, group) else 0
    return Bound(key, counts, least + constraint.max_skew - itself)


FILTER = Filter("PodTopologySpread", prepare, frozenset({Node, Pod}))
