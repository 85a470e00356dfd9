"""InterPodAffinity: required pod affinity and anti-affinity, of the pod and of pods that are placed.

A domain is the set of nodes with one value of a label. The first of several pods with affinity to each other
finds no match; it is allowed on any node with the label if it matches its own selector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from volplane.api.core import Namespace, Node, Pod, PodAffinityTerm
from volplane.scheduler.filters.base import Filter, NodeCheck, NodeRefusal
from volplane.scheduler.node_cache import NodeInfo
from volplane.scheduler.pod_affinity_index import (
    REQUIRED_ANTI_AFFINITY,
    CombinedPodSelector,
    selector_of_term,
)
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

NOT_NEAR = NodeRefusal(("node(s) didn't match pod affinity rules",))
TOO_NEAR = NodeRefusal(("node(s) didn't match pod anti-affinity rules",), final=False)
NOT_WELCOME = NodeRefusal(("node(s) didn't satisfy existing pods anti-affinity rules",), final=False)

Domains = list[tuple[str, Counter[str]]]  # label, and the number of pods in each of its domains


def prepare(pod: Pod, snapshot: SchedulingSnapshot) -> NodeCheck | None:
    near, away = _terms(pod)
    company, alone = _required_domains(pod, near, snapshot)
    avoided = [(term.topology_key, _domains((term,), term.topology_key, pod, snapshot)) for term in away]
    closed = _forbidden_domains(pod, snapshot)
    if not near and not any(counts for _, counts in avoided) and not closed:
        return None

    def check(info: NodeInfo) -> NodeRefusal | None:
        labels = info.labels
        for key, counts in company:
            value = labels.get(key)
            if value is None or (not alone and not counts[value]):
                return NOT_NEAR
        if any(counts[labels[key]] for key, counts in avoided if key in labels):
            return TOO_NEAR
        return NOT_WELCOME if any(labels[key] in counts for key, counts in closed if key in labels) else None

    return check


def _terms(pod: Pod) -> tuple[tuple[PodAffinityTerm, ...], tuple[PodAffinityTerm, ...]]:
    affinity = pod.spec.affinity
    near = affinity.pod_affinity if affinity else None
    away = affinity.pod_anti_affinity if affinity else None
    return (
        near.required_during_scheduling_ignored_during_execution if near else (),
        away.required_during_scheduling_ignored_during_execution if away else (),
    )


def _domains(
    terms: Iterable[PodAffinityTerm], key: str, pod: Pod, snapshot: SchedulingSnapshot
) -> Counter[str]:
    group = CombinedPodSelector(tuple(selector_of_term(term, pod) for term in terms))
    return snapshot.node_cache.count_by_domain(snapshot.node_cache.count_pods(group), key)


def _required_domains(
    pod: Pod, terms: tuple[PodAffinityTerm, ...], snapshot: SchedulingSnapshot
) -> tuple[Domains, bool]:
    """Domains with pods that match every term, and whether the pod is the first that matches itself."""
    if not terms:
        return [], False
    found = [(term.topology_key, _domains(terms, term.topology_key, pod, snapshot)) for term in terms]
    group = CombinedPodSelector(tuple(selector_of_term(term, pod) for term in terms))
    none_match = not any(counts for _, counts in found)
    return found, none_match and snapshot.node_cache.affinity_index.matches_combined(pod, group)


def _forbidden_domains(pod: Pod, snapshot: SchedulingSnapshot) -> Domains:
    """Domains of placed pods with anti-affinity to this one."""
    cache, index = snapshot.node_cache, snapshot.node_cache.affinity_index
    return [
        (rule.key, cache.count_by_domain(nodes, rule.key))
        for rule, nodes in index.rules.items()
        if rule.weight == REQUIRED_ANTI_AFFINITY and index.matches_selector(pod, rule.selector)
    ]


FILTER = Filter("InterPodAffinity", prepare, frozenset({Node, Pod, Namespace}))
