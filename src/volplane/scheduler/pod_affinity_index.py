"""Who is where: the pods on nodes counted by kind, for the rules by which pods seek or avoid each other.

Replicas ask the same question thousands of times, so an answer is kept and every pod that comes or goes is
added to it: a decision costs the nodes on which somebody matches, never all pods. Rules of pods that are
there already (keep away from me) are grouped in the same way, one entry for all replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct

from volplane.api.core import Pod, PodAffinityTerm
from volplane.api.selectors import LabelMatcher, LabelRequirement, Operator
from volplane.rules.workloads import controller_of

MAX_CACHED_COUNTS = 256  # questions whose answer is kept up to date; the oldest is forgotten first
REQUIRED_ANTI_AFFINITY = 0  # the weight of a rule that is no matter of points
REQUIRED_AFFINITY_WEIGHT = 1  # points for going where a pod is that requires company of this kind


K = TypeVar("K", bound=Hashable)


class PodSelector(Struct, frozen=True):
    """Which pods a term means: labels, and the namespaces by name or by their own labels."""

    selector: LabelMatcher
    namespaces: frozenset[str]
    namespace_selector: LabelMatcher | None = None


class CombinedPodSelector(Struct, frozen=True):
    """Pods that are of all these kinds."""

    selectors: tuple[PodSelector, ...]
    ignores_terminating: bool = False  # without those that are on their way out


class AffinityRule(Struct, frozen=True):
    """What a pod that is there wants of pods of a kind: to stay out of its domain, or points for coming."""

    selector: PodSelector
    key: str  # the label whose value is the domain
    weight: int = REQUIRED_ANTI_AFFINITY


class IndexedPod(Struct, frozen=True):
    """A pod as others see it."""

    pod: Pod
    rules: tuple[AffinityRule, ...]
    owner: str  # uid of its controller


def index_pod(pod: Pod) -> IndexedPod:
    owner = controller_of(pod)
    return IndexedPod(pod, tuple(affinity_rules(pod)), owner.uid if owner else "")


def selector_of_term(term: PodAffinityTerm, pod: Pod) -> PodSelector:
    """The term as `pod` means it: some of its own labels may be part of it."""
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
    """What the pod would like; the rest is not a matter of points."""
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
        self.rules: dict[AffinityRule, Counter[str]] = {}  # → nodes of the pods that have it
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
        """By node: pods of the same controller."""
        return self._owners.get(owner, {})

    def count_pods(
        self, group: CombinedPodSelector, placed_pods: Iterable[tuple[Pod, str]]
    ) -> Mapping[str, int]:
        """By node: pods of the group; `everybody` is asked only when the question is new."""
        counts = self._answers.get(group)
        if counts is None:
            counts = Counter(node for pod, node in placed_pods if self.matches_combined(pod, group))
            while len(self._answers) >= MAX_CACHED_COUNTS:
                del self._answers[next(iter(self._answers))]
            self._answers[group] = counts
        return counts

    def clear_counts(self) -> None:
        """Namespaces have changed their labels: every answer may be another one."""
        self._answers.clear()


class PodAffinityIndexOverlay(PodAffinityIndex):
    """A crowd with some pods added or removed; the one below stays as it is."""

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
        """The counts of a group with what has changed."""
        return _apply_changes(counts, [c for c in self._changes if self.matches_combined(c[0].pod, group)])


def _apply_changes(
    counts: Mapping[str, int], changes: Iterable[tuple[IndexedPod, str, int]]
) -> Mapping[str, int]:
    made = Counter(counts)
    for _, node, step in changes:
        made[node] += step
    return +made  # without the nodes that have none left


def _add(table: dict[K, Counter[str]], key: K, node: str, step: int) -> None:
    counts = table.setdefault(key, Counter())
    counts[node] += step
    if not counts[node]:
        del counts[node]
    if not counts:
        del table[key]
