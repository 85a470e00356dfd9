"""Whom a pod may push aside when no node has room for it, and where the least harm is done.

On every node that eviction could help, all pods of lower priority are removed from an overlay of the ledger;
if the pod fits then, they are added again one by one, the important ones first, as long as it still fits. A
pod that cannot be added again is a victim.
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
    budget_violations: int = 0  # victims that a disruption budget would rather have kept


class NoPreemption(Struct, frozen=True):
    """Nobody is pushed aside; `text` says why in the scheduler's words."""

    text: str
    waiting: bool = False  # victims of an earlier decision are on their way out


def find_preemption(
    pod: Pod, world: SchedulingSnapshot, refused: Mapping[str, NodeRefusal], fits: Fits
) -> PreemptionCandidate | NoPreemption:
    if pod.spec.preemption_policy == "Never":
        return NoPreemption(NEVER)
    if _is_preemption_running(pod, world, refused):
        return NoPreemption(VICTIMS_TERMINATING, waiting=True)
    candidates: list[PreemptionCandidate] = []
    reasons: Counter[str] = Counter()
    for name, no in refused.items():
        info = world.node_cache.find_node(name)
        if no.final or info is None:
            reasons[NOT_HELPFUL] += 1
            continue
        found = _select_victims(info, pod, world, fits)
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


def _is_preemption_running(pod: Pod, world: SchedulingSnapshot, refused: Mapping[str, NodeRefusal]) -> bool:
    chosen = world.node_cache.nominated_node(pod.key)
    info = world.node_cache.find_node(chosen) if chosen else None
    if info is None or (chosen in refused and refused[chosen].final):
        return False
    own = priority_of(pod)
    return any(t.pod.is_deleting and priority_of(t.pod) < own for t in info.pods.values())


def disruption_cost(eviction: PreemptionCandidate) -> tuple[object, ...]:
    """Budgets first, then how important the victims are, then how many, then how long they have run."""
    priorities = [priority_of(v) for v in eviction.victims]
    most = max(priorities)
    oldest = min(_since(v) for v in eviction.victims if priority_of(v) == most)
    age = tuple(-ord(c) for c in oldest)  # the one that has run the shortest goes
    return eviction.budget_violations, most, sum(priorities), len(priorities), age, eviction.node


def _since(pod: Pod) -> str:
    return pod.status.start_time or pod.metadata.creation_timestamp or ""


def _importance(pod: Pod) -> tuple[int, str]:
    return -priority_of(pod), _since(pod)


def _select_victims(
    info: NodeInfo, pod: Pod, world: SchedulingSnapshot, fits: Fits
) -> PreemptionCandidate | NodeRefusal:
    own = priority_of(pod)
    if not info.priorities or min(info.priorities) >= own:
        return NodeRefusal((NO_VICTIMS,))
    # A pod that is only promised to the node is nobody's victim: its own decision is still under way.
    lower = [t.pod for t in info.pods.values() if priority_of(t.pod) < own and t.pod.spec.node_name]
    if not lower:
        return NodeRefusal((NO_VICTIMS,))
    trial = _VictimTrial(world, info.name, fits)
    for each in lower:
        trial.remove(each.key)
    no = trial.refusal()
    if no is not None:
        return no
    broken, harmless = _split_by_budget(sorted(lower, key=_importance), world)
    victims = [each for each in broken if not trial.reprieve(each.key)]
    count = len(victims)
    victims += [each for each in harmless if not trial.reprieve(each.key)]
    if not victims:
        return NodeRefusal((NO_VICTIMS,))  # the pods that were thought away were not in its way
    return PreemptionCandidate(info.name, tuple(sorted(victims, key=_importance)), count)


def _split_by_budget(pods: Sequence[Pod], world: SchedulingSnapshot) -> tuple[list[Pod], list[Pod]]:
    """Those whose eviction breaks a budget, and the others."""
    left: dict[str, int] = {}
    broken: list[Pod] = []
    harmless: list[Pod] = []
    for pod in pods:
        breaks = False
        for budget in _budgets(pod, world.budgets(pod.namespace)):
            if pod.name in budget.status.disrupted_pods:
                continue  # its eviction is counted already
            allowed = left.get(budget.key, budget.status.disruptions_allowed) - 1
            left[budget.key] = allowed
            breaks |= allowed < 0
        (broken if breaks else harmless).append(pod)
    return broken, harmless


def _budgets(pod: Pod, budgets: Iterable[PodDisruptionBudget]) -> Iterator[PodDisruptionBudget]:
    # A pod without labels, and a budget without a selector, have nothing to do with each other.
    return (b for b in budgets if pod.metadata.labels and disruption.covers(b, pod))


class _VictimTrial:
    """One node without some of its pods, on an overlay of the ledger."""

    def __init__(self, world: SchedulingSnapshot, node: str, fits: Fits) -> None:
        self.overlay = NodeCacheOverlay(world.node_cache)
        self.world = structs.replace(world, node_cache=self.overlay)
        self.node, self.fits = node, fits
        self.removed: dict[str, PodUsage] = {}

    def refusal(self) -> NodeRefusal | None:
        return self.fits(self.world, self.overlay.node_info(self.node))

    def remove(self, key: str) -> None:
        self.removed[key] = self.overlay.remove_pod(key, self.node)

    def reprieve(self, key: str) -> bool:
        """Whether the pod can stay."""
        self.overlay.add_pod(self.removed.pop(key), self.node)
        if self.refusal() is None:
            return True
        self.remove(key)
        return False
