"""Preemption: which pods of lower priority to evict for a pod that fits on no node, and on which node.

On every node where evictions can help, all pods of lower priority are removed from an overlay of the node
cache. If the pod fits then, they are added again one by one, the most important first, as long as it still
fits. A pod that cannot be added again is a victim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, structs

from volplane.api.core import Pod
from volplane.api.policy import PodDisruptionBudget
from volplane.rules import disruption
from volplane.scheduler.filters.base import NodeRefusal
from volplane.scheduler.node_cache import NodeCacheOverlay, NodeInfo, PodUsage, priority_of
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"
NEVER = "not eligible due to preemptionPolicy=Never."
VICTIMS_TERMINATING = "not eligible due to a terminating pod on the nominated node."
MAX_CANDIDATES = 100  # nodes that are compared

Fits = Callable[[SchedulingSnapshot, NodeInfo], NodeRefusal | None]  # all filters, prepared anew, on one node


class PreemptionCandidate(Struct, frozen=True):
    node: str
    victims: tuple[Pod, ...]  # the most important first
    budget_violations: int = 0  # victims whose eviction violates a disruption budget


class NoPreemption(Struct, frozen=True):
    """No pod is evicted; `text` is upstream's message."""

    text: str
    waiting: bool = False  # victims of an earlier preemption are still terminating


def find_preemption(
    pod: Pod, snapshot: SchedulingSnapshot, refused: Mapping[str, NodeRefusal], fits: Fits
) -> PreemptionCandidate | NoPreemption:
    if pod.spec.preemption_policy == "Never":
        return NoPreemption(NEVER)
    if _is_preemption_running(pod, snapshot, refused):
        return NoPreemption(VICTIMS_TERMINATING, waiting=True)
    candidates: list[PreemptionCandidate] = []
    reasons: Counter[str] = Counter()
    for name, no in refused.items():
        info = snapshot.node_cache.find_node(name)
        if no.final or info is None:
            reasons[NOT_HELPFUL] += 1
            continue
        found = _select_victims(info, pod, snapshot, fits)
        if isinstance(found, PreemptionCandidate):
            candidates.append(found)
            if len(candidates) == MAX_CANDIDATES:
                break
        else:
            reasons.update(found.reasons)
    if candidates:
        return min(candidates, key=disruption_cost)
    return NoPreemption(f"0/{len(refused)} nodes are available: {list_reasons(reasons)}.")


def list_reasons(reasons: Mapping[str, int]) -> str:
    return ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))


def _is_preemption_running(
    pod: Pod, snapshot: SchedulingSnapshot, refused: Mapping[str, NodeRefusal]
) -> bool:
    chosen = snapshot.node_cache.nominated_node(pod.key)
    info = snapshot.node_cache.find_node(chosen) if chosen else None
    if info is None or (chosen in refused and refused[chosen].final):
        return False
    own = priority_of(pod)
    return any(t.pod.is_deleting and priority_of(t.pod) < own for t in info.pods.values())


def disruption_cost(eviction: PreemptionCandidate) -> tuple[object, ...]:
    """Budget violations first, then the priorities of the victims, their number, and their age."""
    priorities = [priority_of(v) for v in eviction.victims]
    most = max(priorities)
    oldest = min(_since(v) for v in eviction.victims if priority_of(v) == most)
    age = tuple(-ord(c) for c in oldest)  # the victim that started last is preferred
    return eviction.budget_violations, most, sum(priorities), len(priorities), age, eviction.node


def _since(pod: Pod) -> str:
    return pod.status.start_time or pod.metadata.creation_timestamp or ""


def _importance(pod: Pod) -> tuple[int, str]:
    return -priority_of(pod), _since(pod)


def _select_victims(
    info: NodeInfo, pod: Pod, snapshot: SchedulingSnapshot, fits: Fits
) -> PreemptionCandidate | NodeRefusal:
    own = priority_of(pod)
    if not info.priorities or min(info.priorities) >= own:
        return NodeRefusal((NO_VICTIMS,))
    # A pod that is only assumed on the node is not a victim: its binding is still in progress.
    lower = [t.pod for t in info.pods.values() if priority_of(t.pod) < own and t.pod.spec.node_name]
    if not lower:
        return NodeRefusal((NO_VICTIMS,))
    trial = _VictimTrial(snapshot, info.name, fits)
    for each in lower:
        trial.remove(each.key)
    no = trial.refusal()
    if no is not None:
        return no
    broken, harmless = _split_by_budget(sorted(lower, key=_importance), snapshot)
    victims = [each for each in broken if not trial.reprieve(each.key)]
    count = len(victims)
    victims += [each for each in harmless if not trial.reprieve(each.key)]
    if not victims:
        return NodeRefusal((NO_VICTIMS,))  # the removed pods were not the reason for the refusal
    return PreemptionCandidate(info.name, tuple(sorted(victims, key=_importance)), count)


def _split_by_budget(pods: Sequence[Pod], snapshot: SchedulingSnapshot) -> tuple[list[Pod], list[Pod]]:
    """The pods whose eviction violates a disruption budget, and the others."""
    left: dict[str, int] = {}
    broken: list[Pod] = []
    harmless: list[Pod] = []
    for pod in pods:
        breaks = False
        for budget in _budgets(pod, snapshot.budgets(pod.namespace)):
            if pod.name in budget.status.disrupted_pods:
                continue  # its eviction is counted already
            allowed = left.get(budget.key, budget.status.disruptions_allowed) - 1
            left[budget.key] = allowed
            breaks |= allowed < 0
        (broken if breaks else harmless).append(pod)
    return broken, harmless


def _budgets(pod: Pod, budgets: Iterable[PodDisruptionBudget]) -> Iterator[PodDisruptionBudget]:
    # A budget without a selector does not cover pods without labels.
    return (b for b in budgets if pod.metadata.labels and disruption.covers(b, pod))


class _VictimTrial:
    """One node without some of its pods, on an overlay of the node cache."""

    def __init__(self, snapshot: SchedulingSnapshot, node: str, fits: Fits) -> None:
        self.overlay = NodeCacheOverlay(snapshot.node_cache)
        self.snapshot = structs.replace(snapshot, node_cache=self.overlay)
        self.node, self.fits = node, fits
        self.removed: dict[str, PodUsage] = {}

    def refusal(self) -> NodeRefusal | None:
        return self.fits(self.snapshot, self.overlay.node_info(self.node))

    def remove(self, key: str) -> None:
        self.removed[key] = self.overlay.remove_pod(key, self.node)

    def reprieve(self, key: str) -> bool:
        """Add the pod again if the incoming one still fits; True if the pod can stay."""
        self.overlay.add_pod(self.removed.pop(key), self.node)
        if self.refusal() is None:
            return True
        self.remove(key)
        return False
