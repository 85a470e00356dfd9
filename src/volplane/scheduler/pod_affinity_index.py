"""The pods on nodes, counted by selector, for pod affinity, anti-affinity and topology spread.

Replicas have the same selectors, so counts are cached and updated with every pod that is added or removed: a
decision costs the nodes with matching pods, never all pods. The anti-affinity rules of pods that are placed
already are grouped in the same way, with one entry for all replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct

from volplane.api.core import Pod, PodAffinityTerm
from volplane.api.selectors import LabelMatcher, LabelRequirement, Operator
from volplane.rules.workloads import controller_of

MAX_CACHED_COUNTS = 256  # selectors with cached counts; the oldest is dropped first
REQUIRED_ANTI_AFFINITY = 0  # not a weight: the rule is required
REQUIRED_AFFINITY_WEIGHT = 1  # points for a domain with a pod that requires affinity to this one


K = TypeVar("K", bound=Hashable)


class PodSelector(Struct, frozen=True):
    """The pods that an affinity term selects: labels, and namespaces by name or by label."""

    selector: LabelMatcher
    namespaces: frozenset[str]
    namespace_selector: LabelMatcher | None = None


class CombinedPodSelector(Struct, frozen=True):
    """Pods that match all these selectors."""

    selectors: tuple[PodSelector, ...]
    ignores_terminating: bool = False  # terminating pods do not match


class AffinityRule(Struct, frozen=True):
    """A rule of a placed pod about other pods: required anti-affinity, or points for its domain."""

    selector: PodSelector
    key: str  # the label whose value is the domain
    weight: int = REQUIRED_ANTI_AFFINITY


class IndexedPod(Struct, frozen=True):
    """A pod with its affinity rules and its controller."""

    pod: Pod
    rules: tuple[AffinityRule, ...]
    owner: str  # uid of its controller


def index_pod(pod: Pod) -> IndexedPod:
    owner = controller_of(pod)
    return IndexedPod(pod, tuple(affinity_rules(pod)), owner.uid if owner else "")


def selector_of_term(term: PodAffinityTerm, pod: Pod) -> PodSelector:
    """The selector of a term of `pod`, whose own labels may be part of it (matchLabelKeys)."""
    labels = pod.metadata.labels
    own = [LabelRequirement(k, Operator.IN, (labels[k],)) for k in term.match_label_keys if k in labels]
    own += [
        LabelRequirement(k, Operator.NOT_IN, (labels[k],)) for k in term.mismatch_label_keys if k in labels
    ]
    selector = LabelMatcher((*LabelMatcher.of(term.label_selector).requirements, *own))
    by_labels = LabelMatcher.of(term.namespace_selector) if term.namespace_selector is not None else None
    named = frozenset(term.namespaces)
    if not named and by_labels is None:
        named = frozenset((pod.namespace,))
    return PodSelector(selector, named, by_labels)


def affinity_rules(pod: Pod) -> Iterator[AffinityRule]:
    affinity = pod.spec.affinity
    if affinity is None:
        return
    near, away = affinity.pod_affinity, affinity.pod_anti_affinity
    for term in away.required_during_scheduling_ignored_during_execution if away else ():
        yield AffinityRule(selector_of_term(term, pod), term.topology_key)
    for term in near.required_during_scheduling_ignored_during_execution if near else ():
        yield AffinityRule(selector_of_term(term, pod), term.topology_key, REQUIRED_AFFINITY_WEIGHT)
    yield from preferred_affinity_rules(pod)


def preferred_affinity_rules(pod: Pod) -> Iterator[AffinityRule]:
    """The preferred terms of the pod; required ones give no points."""
    affinity = pod.spec.affinity
    if affinity is None:
        return
    for sign, side in ((1, affinity.pod_affinity), (-1, affinity.pod_anti_affinity)):
        for soft in side.preferred_during_scheduling_ignored_during_execution if side else ():
            term = soft.pod_affinity_term
            yield AffinityRule(selector_of_term(term, pod), term.topology_key, sign * soft.weight)


NamespaceLabels = Callable[[str], Mapping[str, str]]  # by the name of the namespace


class PodAffinityIndex:
    def __init__(self, namespace_labels: NamespaceLabels = lambda name: {}) -> None:
        self.namespace_labels = namespace_labels
        self.rules: dict[AffinityRule, Counter[str]] = {}  # → number of pods that have it, by node
        self._owners: dict[str, Counter[str]] = {}
        self._answers: dict[CombinedPodSelector, Counter[str]] = {}

    def add_pod(self, who: IndexedPod, node: str) -> None:
        self._count(who, node, +1)

    def remove_pod(self, who: IndexedPod, node: str) -> None:
        self._count(who, node, -1)

    def _count(self, who: IndexedPod, node: str, step: int) -> None:
        for rule in who.rules:
            _add(self.rules, rule, node, step)
        if who.owner and not who.pod.is_deleting:
            _add(self._owners, who.owner, node, step)
        for group, counts in self._answers.items():
            if self.matches_combined(who.pod, group):
                counts[node] += step
                if not counts[node]:
                    del counts[node]

    def matches_combined(self, pod: Pod, group: CombinedPodSelector) -> bool:
        if group.ignores_terminating and pod.is_deleting:
            return False
        return all(self.matches_selector(pod, kind) for kind in group.selectors)

    def matches_selector(self, pod: Pod, kind: PodSelector) -> bool:
        if not kind.selector.matches(pod.metadata.labels):
            return False
        if pod.namespace in kind.namespaces:
            return True
        wanted = kind.namespace_selector
        return wanted is not None and wanted.matches(self.namespace_labels(pod.namespace))

    def siblings(self, owner: str) -> Mapping[str, int]:
        """The number of pods of the same controller, by node."""
        return self._owners.get(owner, {})

    def count_pods(
        self, group: CombinedPodSelector, placed_pods: Iterable[tuple[Pod, str]]
    ) -> Mapping[str, int]:
        """The number of matching pods, by node; `placed_pods` is read only for a new selector."""
        counts = self._answers.get(group)
        if counts is None:
            counts = Counter(node for pod, node in placed_pods if self.matches_combined(pod, group))
            while len(self._answers) >= MAX_CACHED_COUNTS:
                del self._answers[next(iter(self._answers))]
            self._answers[group] = counts
        return counts

    def clear_counts(self) -> None:
        """Labels of namespaces have changed: every count may have, too."""
        self._answers.clear()


class PodAffinityIndexOverlay(PodAffinityIndex):
    """An index with some pods added or removed; the one below does not change."""

    def __init__(self, base: PodAffinityIndex) -> None:
        super().__init__(base.namespace_labels)
        self._base = base
        self.rules = base.rules
        self._changes: list[tuple[IndexedPod, str, int]] = []

    def _count(self, who: IndexedPod, node: str, step: int) -> None:
        self._changes.append((who, node, step))
        for rule in who.rules:
            counts = Counter(self.rules.get(rule, {}))
            counts[node] += step
            rules = {other: held for other, held in self.rules.items() if other != rule}
            self.rules = {**rules, rule: +counts} if +counts else rules

    def siblings(self, owner: str) -> Mapping[str, int]:
        own = [change for change in self._changes if change[0].owner == owner]
        return _apply_changes(self._base.siblings(owner), [c for c in own if not c[0].pod.is_deleting])

    def adjust(self, group: CombinedPodSelector, counts: Mapping[str, int]) -> Mapping[str, int]:
        """The counts of a selector with the added and removed pods."""
        return _apply_changes(counts, [c for c in self._changes if self.matches_combined(c[0].pod, group)])


def _apply_changes(
    counts: Mapping[str, int], changes: Iterable[tuple[IndexedPod, str, int]]
) -> Mapping[str, int]:
    made = Counter(counts)
    for _, node, step in changes:
        made[node] += step
    return +made  # without zero counts


def _add(table: dict[K, Counter[str]], key: K, node: str, step: int) -> None:
    counts = table.setdefault(key, Counter())
    counts[node] += step
    if not counts[node]:
        del counts[node]
    if not counts:
        del table[key]
