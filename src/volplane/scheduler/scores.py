"""How much a node is liked for the pods that are on it or near it; filters have their say before.

Both scores go from 0 to SCALE over the nodes that are compared. Pods of one controller that
say nothing about spreading are spread all the same, over zones and nodes, as far as nothing else speaks
against it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from volplane.api.core import Pod
from volplane.rules.workloads import controller_of
from volplane.scheduler.crowd import KEEP_OUT, Group, wishes_of
from volplane.scheduler.filters.topology_spread import SOFT, group_of
from volplane.scheduler.ledger import Info
from volplane.scheduler.world import World

SCALE = 1_000_000
HOSTNAME = "kubernetes.io/hostname"
USUAL = (("topology.kubernetes.io/zone", 5), (HOSTNAME, 3))  # label and skew where a pod says nothing

Wishes = Sequence[tuple[str, Mapping[str, int], int]]  # label, pods by node, skew


def company(pod: Pod, world: World, nodes: Sequence[Info]) -> list[int] | None:
    """By pod affinity, the pod's own and that of the pods that are there; None when nobody cares."""
    ledger, crowd = world.ledger, world.ledger.crowd
    weighted: list[tuple[str, Mapping[str, int], int]] = []
    for rule in wishes_of(pod):
        counts = ledger.count(Group((rule.kind,)))
        weighted.append((rule.key, ledger.domains(counts, rule.key), rule.weight))
    for rule, held in crowd.rules.items():
        if rule.weight != KEEP_OUT and crowd.is_of(pod, rule.kind):
            weighted.append((rule.key, ledger.domains(held, rule.key), rule.weight))
    if not any(counts for _, counts, _ in weighted):
        return None
    points = [
        sum(counts.get(info.labels.get(key, ""), 0) * weight for key, counts, weight in weighted)
        for info in nodes
    ]
    low, high = min(points), max(points)
    return [SCALE * (p - low) // (high - low) for p in points] if high > low else None


def spread(pod: Pod, world: World, nodes: Sequence[Info]) -> list[int] | None:
    wishes = _wishes(pod, world)
    if not any(held for _, held, _ in wishes):
        return None
    scores = [0.0] * len(nodes)
    for key, held, skew in wishes:
        counts = world.ledger.domains(held, key) if key != HOSTNAME else {}
        domains = {info.labels[key] for info in nodes if key in info.labels}
        weight = math.log((len(nodes) if key == HOSTNAME else len(domains)) + 2)
        for at, info in enumerate(nodes):
            if key in info.labels:
                count = held.get(info.name, 0) if key == HOSTNAME else counts[info.labels[key]]
                scores[at] += count * weight + skew - 1
    low, high = min(scores), max(scores)
    return [int(SCALE * (high + low - score) / high) for score in scores] if high else None


def _wishes(pod: Pod, world: World) -> Wishes:
    constraints = pod.spec.topology_spread_constraints
    if constraints:
        return [
            (c.topology_key, world.ledger.count(group_of(c, pod)), c.max_skew)
            for c in constraints
            if c.when_unsatisfiable == SOFT
        ]
    owner = controller_of(pod)
    if owner is None:
        return ()
    siblings = world.ledger.crowd.siblings(owner.uid)
    return [(key, siblings, skew) for key, skew in USUAL]
