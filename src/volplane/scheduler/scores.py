"""Scores of feasible nodes: pod affinity and topology spread.

Both scores go from 0 to SCALE over the nodes that are compared. Pods of one controller without spread
constraints are spread over zones and nodes by default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from volplane.api.core import Pod
from volplane.api.labels import HOSTNAME_LABEL, ZONE_LABEL
from volplane.rules.workloads import controller_of
from volplane.scheduler.filters.topology_spread import SCHEDULE_ANYWAY, selector_of_constraint
from volplane.scheduler.node_cache import NodeInfo
from volplane.scheduler.pod_affinity_index import (
    REQUIRED_ANTI_AFFINITY,
    CombinedPodSelector,
    preferred_affinity_rules,
)
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

SCALE = 1_000_000
DEFAULT_CONSTRAINTS = (
    (ZONE_LABEL, 5),
    (HOSTNAME_LABEL, 3),
)  # label and skew of a pod without constraints

SpreadConstraints = Sequence[tuple[str, Mapping[str, int], int]]  # label, pods by node, skew


def score_pod_affinity(pod: Pod, snapshot: SchedulingSnapshot, nodes: Sequence[NodeInfo]) -> list[int] | None:
    """Points by pod affinity, of the pod and of pods that are placed; None if no rule applies."""
    cache, index = snapshot.node_cache, snapshot.node_cache.affinity_index
    weighted: list[tuple[str, Mapping[str, int], int]] = []
    for rule in preferred_affinity_rules(pod):
        counts = cache.count_pods(CombinedPodSelector((rule.selector,)))
        weighted.append((rule.key, cache.count_by_domain(counts, rule.key), rule.weight))
    for rule, held in index.rules.items():
        if rule.weight != REQUIRED_ANTI_AFFINITY and index.matches_selector(pod, rule.selector):
            weighted.append((rule.key, cache.count_by_domain(held, rule.key), rule.weight))
    if not any(counts for _, counts, _ in weighted):
        return None
    points = [
        sum(counts.get(info.labels.get(key, ""), 0) * weight for key, counts, weight in weighted)
        for info in nodes
    ]
    low, high = min(points), max(points)
    return [SCALE * (p - low) // (high - low) for p in points] if high > low else None


def score_topology_spread(
    pod: Pod, snapshot: SchedulingSnapshot, nodes: Sequence[NodeInfo]
) -> list[int] | None:
    constraints = _spread_constraints(pod, snapshot)
    if not any(held for _, held, _ in constraints):
        return None
    scores = [0.0] * len(nodes)
    for key, held, skew in constraints:
        counts = snapshot.node_cache.count_by_domain(held, key) if key != HOSTNAME_LABEL else {}
        domains = {info.labels[key] for info in nodes if key in info.labels}
        weight = math.log((len(nodes) if key == HOSTNAME_LABEL else len(domains)) + 2)
        for at, info in enumerate(nodes):
            if key in info.labels:
                count = held.get(info.name, 0) if key == HOSTNAME_LABEL else counts[info.labels[key]]
                scores[at] += count * weight + skew - 1
    low, high = min(scores), max(scores)
    return [int(SCALE * (high + low - score) / high) for score in scores] if high else None


def _spread_constraints(pod: Pod, snapshot: SchedulingSnapshot) -> SpreadConstraints:
    constraints = pod.spec.topology_spread_constraints
    if constraints:
        return [
            (c.topology_key, snapshot.node_cache.count_pods(selector_of_constraint(c, pod)), c.max_skew)
            for c in constraints
            if c.when_unsatisfiable == SCHEDULE_ANYWAY
        ]
    owner = controller_of(pod)
    if owner is None:
        return ()
    siblings = snapshot.node_cache.affinity_index.siblings(owner.uid)
    return [(key, siblings, skew) for key, skew in DEFAULT_CONSTRAINTS]
