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
from volplane.api.selectors import Labels, Operator, Requirement
from volplane.rules.workloads import controller_of

REMEMBERED = 256  # questions whose answer is kept up to date; the oldest is forgotten first
KEEP_OUT = 0  # the weight of a rule that is no matter of points
HARD_WEIGHT = 1  # points for going where a pod is that requires company of this kind


K = TypeVar("K", bound=Hashable)


class Kind(Struct, frozen=True):
    """Which pods a term means: labels, and the namespaces by name or by their own labels."""

    selector: Labels
    spaces: frozenset[str]
    space_labels: Labels | None = None


class Group(Struct, frozen=True):
    """Pods that are of all these kinds."""

    kinds: tuple[Kind, ...]
    staying: bool = False  # without those that are on their way out


class Rule(Struct, frozen=True):
    """What a pod that is there wants of pods of a kind: to stay out of its domain, or points for coming."""

    kind: Kind
    key: str  # the label whose value is the domain
    weight: int = KEEP_OUT


class Member(Struct, frozen=True):
    """A pod as others see it."""

    pod: Pod
    rules: tuple[Rule, ...]
    owner: str  # uid of its controller


def member(pod: Pod) -> Member:
    owner = controller_of(pod)
    return Member(pod, tuple(rules_of(pod)), owner.uid if owner else "")


def kind_of(term: PodAffinityTerm, pod: Pod) -> Kind:
    """The term as `pod` means it: some of its own labels may be part of it."""
    labels = pod.metadata.labels
    own = [Requirement(k, Operator.IN, (labels[k],)) for k in term.match_label_keys if k in labels]
    own += [Requirement(k, Operator.NOT_IN, (labels[k],)) for k in term.mismatch_label_keys if k in labels]
    selector = Labels((*Labels.of(term.label_selector).requirements, *own))
    by_labels = Labels.of(term.namespace_selector) if term.namespace_selector is not None else None
    named = frozenset(term.namespaces)
    if not named and by_labels is None:
        named = frozenset((pod.namespace,))
    return Kind(selector, named, by_labels)


def rules_of(pod: Pod) -> Iterator[Rule]:
    affinity = pod.spec.affinity
    if affinity is None:
        return
    near, away = affinity.pod_affinity, affinity.pod_anti_affinity
    for term in away.required_during_scheduling_ignored_during_execution if away else ():
        yield Rule(kind_of(term, pod), term.topology_key)
    for term in near.required_during_scheduling_ignored_during_execution if near else ():
        yield Rule(kind_of(term, pod), term.topology_key, HARD_WEIGHT)
    yield from wishes_of(pod)


def wishes_of(pod: Pod) -> Iterator[Rule]:
    """What the pod would like; the rest is not a matter of points."""
    affinity = pod.spec.affinity
    if affinity is None:
        return
    for sign, side in ((1, affinity.pod_affinity), (-1, affinity.pod_anti_affinity)):
        for soft in side.preferred_during_scheduling_ignored_during_execution if side else ():
            term = soft.pod_affinity_term
            yield Rule(kind_of(term, pod), term.topology_key, sign * soft.weight)


class Crowd:
    def __init__(self) -> None:
        self.space_labels: Callable[[str], Mapping[str, str]] = lambda name: {}
        self.rules: dict[Rule, Counter[str]] = {}  # → nodes of the pods that have it
        self._owners: dict[str, Counter[str]] = {}
        self._answers: dict[Group, Counter[str]] = {}

    def enter(self, who: Member, node: str) -> None:
        self._count(who, node, +1)

    def leave(self, who: Member, node: str) -> None:
        self._count(who, node, -1)

    def _count(self, who: Member, node: str, step: int) -> None:
        for rule in who.rules:
            _add(self.rules, rule, node, step)
        if who.owner and not who.pod.is_deleting:
            _add(self._owners, who.owner, node, step)
        for group, counts in self._answers.items():
            if self.is_in(who.pod, group):
                counts[node] += step
                if not counts[node]:
                    del counts[node]

    def is_in(self, pod: Pod, group: Group) -> bool:
        if group.staying and pod.is_deleting:
            return False
        return all(self.is_of(pod, kind) for kind in group.kinds)

    def is_of(self, pod: Pod, kind: Kind) -> bool:
        if not kind.selector.matches(pod.metadata.labels):
            return False
        if pod.namespace in kind.spaces:
            return True
        wanted = kind.space_labels
        return wanted is not None and wanted.matches(self.space_labels(pod.namespace))

    def siblings(self, owner: str) -> Mapping[str, int]:
        """By node: pods of the same controller."""
        return self._owners.get(owner, {})

    def count(self, group: Group, everybody: Iterable[tuple[Pod, str]]) -> Mapping[str, int]:
        """By node: pods of the group; `everybody` is asked only when the question is new."""
        counts = self._answers.get(group)
        if counts is None:
            counts = Counter(node for pod, node in everybody if self.is_in(pod, group))
            while len(self._answers) >= REMEMBERED:
                del self._answers[next(iter(self._answers))]
            self._answers[group] = counts
        return counts

    def forget(self) -> None:
        """Namespaces have changed their labels: every answer may be another one."""
        self._answers.clear()


class CrowdOverlay(Crowd):
    """A crowd with some pods added or removed; the one below stays as it is."""

    def __init__(self, base: Crowd) -> None:
        super().__init__()
        self._base = base
        self.space_labels = base.space_labels
        self.rules = base.rules
        self._changes: list[tuple[Member, str, int]] = []

    def _count(self, who: Member, node: str, step: int) -> None:
        self._changes.append((who, node, step))
        for rule in who.rules:
            counts = Counter(self.rules.get(rule, {}))
            counts[node] += step
            rules = {other: held for other, held in self.rules.items() if other != rule}
            self.rules = {**rules, rule: +counts} if +counts else rules

    def siblings(self, owner: str) -> Mapping[str, int]:
        own = [change for change in self._changes if change[0].owner == owner]
        return _apply_changes(self._base.siblings(owner), [c for c in own if not c[0].pod.is_deleting])

    def adjust(self, group: Group, counts: Mapping[str, int]) -> Mapping[str, int]:
        """The counts of a group with what has changed."""
        return _apply_changes(counts, [c for c in self._changes if self.is_in(c[0].pod, group)])


def _apply_changes(
    counts: Mapping[str, int], changes: Iterable[tuple[Member, str, int]]
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
