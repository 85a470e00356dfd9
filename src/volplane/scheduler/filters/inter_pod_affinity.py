"""InterPodAffinity: pods that must be near others, or must not, and others that want this one kept away.

Near means: in a domain, all nodes with one value of a label. The first of several pods
that seek each other finds nobody, and is let in wherever the label is, as long as it is of the kind it seeks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from volplane.api.core import Namespace, Node, Pod, PodAffinityTerm
from volplane.scheduler.crowd import KEEP_OUT, Group, kind_of
from volplane.scheduler.filters.base import Check, Filter, No
from volplane.scheduler.ledger import Info
from volplane.scheduler.world import World

NOT_NEAR = No(("node(s) didn't match pod affinity rules",))
TOO_NEAR = No(("node(s) didn't match pod anti-affinity rules",), final=False)
NOT_WELCOME = No(("node(s) didn't satisfy existing pods anti-affinity rules",), final=False)

Domains = list[tuple[str, Counter[str]]]  # label → how many pods in each of its domains


def prepare(pod: Pod, world: World) -> Check | None:
    near, away = _terms(pod)
    company, alone = _company(pod, near, world)
    avoided = [(term.topology_key, _domains((term,), term.topology_key, pod, world)) for term in away]
    closed = _closed(pod, world)
    if not near and not any(counts for _, counts in avoided) and not closed:
        return None

    def check(info: Info) -> No | None:
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


def _domains(terms: Iterable[PodAffinityTerm], key: str, pod: Pod, world: World) -> Counter[str]:
    group = Group(tuple(kind_of(term, pod) for term in terms))
    return world.ledger.domains(world.ledger.count(group), key)


def _company(pod: Pod, terms: tuple[PodAffinityTerm, ...], world: World) -> tuple[Domains, bool]:
    """Where pods are that match every term, and whether the pod is the first of its own kind."""
    if not terms:
        return [], False
    found = [(term.topology_key, _domains(terms, term.topology_key, pod, world)) for term in terms]
    group = Group(tuple(kind_of(term, pod) for term in terms))
    nobody = not any(counts for _, counts in found)
    return found, nobody and world.ledger.crowd.is_in(pod, group)


def _closed(pod: Pod, world: World) -> Domains:
    """Domains of pods that keep this one out."""
    ledger, crowd = world.ledger, world.ledger.crowd
    return [
        (rule.key, ledger.domains(nodes, rule.key))
        for rule, nodes in crowd.rules.items()
        if rule.weight == KEEP_OUT and crowd.is_of(pod, rule.kind)
    ]


FILTER = Filter("InterPodAffinity", prepare, frozenset({Node, Pod, Namespace}))
