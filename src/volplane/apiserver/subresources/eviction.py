"""pods/eviction: a delete that checks the PodDisruptionBudget first and records the reason in the pod.

The allowed disruption is subtracted from the budget's status before the delete, with optimistic locking: two
concurrent evictions cannot use the same one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import structs

from volplane.api.core import Pod, PodCondition
from volplane.api.errors import APIError, BadRequest, Conflict, Forbidden, TooManyRequests
from volplane.api.meta import DeleteOptions, Preconditions
from volplane.api.policy import Eviction, PodDisruptionBudget, PodDisruptionBudgetStatus
from volplane.apiserver.backend import Backend
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.strategy import ApiCall
from volplane.apiserver.verbs.delete import check_options, check_preconditions, delete
from volplane.apiserver.verbs.update import SERVER_WRITE, modify
from volplane.base import clock
from volplane.rules.disruption import CONDITION, SYNC_FAILED, covers, set_allowed_condition
from volplane.rules.pods import has_ended
from volplane.rules.workloads import is_ready
from volplane.store import StoreRecord

VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."
MOST_DISRUPTED = 2000  # evictions granted but not yet confirmed by the disruption controller
TRIES = 20  # if the pod changes meanwhile


class EvictionPermit(NamedTuple):
    """The pod may be evicted. Pinned: only at the checked revision, because it may have become healthy."""

    pinned: bool = False
    budget: str = ""


class TooManyBudgets(APIError):
    """Upstream answers this with a 500 that has no reason."""

    code = 500
    reason = ""


async def evict(backend: Backend, entry: ServedResource, call: ApiCall, eviction: Eviction) -> None:
    if eviction.metadata.name and eviction.metadata.name != call.name:
        raise BadRequest("name in URL does not match name in Eviction object")
    options = eviction.delete_options or DeleteOptions()
    check_options(options)
    call = structs.replace(call, dry_run=call.dry_run or bool(options.dry_run))
    pinned = options.preconditions is not None and options.preconditions.resource_version is not None
    for left in reversed(range(TRIES)):
        pod: Pod = entry.watch_cache.object(await backend.require(entry, call))
        leave = await _check_budget(backend, call, pod)
        try:
            await _delete_pod(
                backend, entry, call, _pin(options, pod) if leave.pinned and not pinned else options
            )
            return
        except Conflict:
            if pinned or not leave.pinned or not left:
                raise
            if leave.budget:
                raise _busy(leave.budget) from None


def _pin(options: DeleteOptions, pod: Pod) -> DeleteOptions:
    held = options.preconditions or Preconditions()
    exact = structs.replace(held, resource_version=pod.metadata.resource_version)
    return structs.replace(options, preconditions=exact)


# The budget


async def _check_budget(backend: Backend, call: ApiCall, pod: Pod) -> EvictionPermit:
    if pod.is_deleting or has_ended(pod):
        return EvictionPermit()
    if pod.status.phase == "Pending":
        return EvictionPermit(pinned=True)
    budgets = [b for b in await backend.reader.list(PodDisruptionBudget, pod.namespace) if covers(b, pod)]
    if not budgets:
        return EvictionPermit()
    if len(budgets) > 1:
        raise TooManyBudgets(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
    (budget,) = budgets
    if not is_ready(pod) and _allows_unready_eviction(budget):
        return EvictionPermit(pinned=True, budget=budget.name)
    await _use_disruption(backend, call, budget.name, pod)
    return EvictionPermit()


def _allows_unready_eviction(budget: PodDisruptionBudget) -> bool:
    """An unready pod may be evicted if there are enough healthy ones, or if the policy is AlwaysAllow."""
    if budget.spec.unhealthy_pod_eviction_policy == "AlwaysAllow":
        return True
    status = budget.status
    return status.current_healthy >= status.desired_healthy > 0


async def _use_disruption(backend: Backend, call: ApiCall, name: str, pod: Pod) -> None:
    entry = backend.registry.of(PodDisruptionBudget)
    here = structs.replace(call, verb="update", kind=entry.kind, name=name, subresource="status")
    now = clock.stamp(call.now)

    async def take_allowance(budget: PodDisruptionBudget, record: StoreRecord) -> Any:
        _check_status(budget)
        status = budget.status
        left = structs.replace(
            status,
            disruptions_allowed=status.disruptions_allowed - 1,
            disrupted_pods={**status.disrupted_pods, pod.name: now},
        )
        if not left.disruptions_allowed:
            left = set_allowed_condition(left, now)
        return structs.replace(budget, status=left)

    await modify(backend, entry, here, take_allowance)


def _check_status(budget: PodDisruptionBudget) -> None:
    status = budget.status
    if status.observed_generation < budget.metadata.generation:
        raise _busy(budget.name)
    if len(status.disrupted_pods) > MOST_DISRUPTED:
        why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        raise Forbidden(f'poddisruptionbudget.policy "{budget.name}" is forbidden: {why}')
    if status.disruptions_allowed <= 0:
        raise _violation(_violation_message(budget.name, status))


def _violation_message(name: str, status: PodDisruptionBudgetStatus) -> str:
    held = next((c for c in status.conditions if c.type == CONDITION and c.status == "False"), None)
    if held is not None and held.reason == SYNC_FAILED and held.message:
        return (
            f"The disruption budget {name} does not allow evicting pods currently because it failed sync: "
            f"{held.message}"
        )
    if status.current_healthy <= status.desired_healthy:
        needs, has = status.desired_healthy, status.current_healthy
        return f"The disruption budget {name} needs {needs} healthy pods and has {has} currently"
    return f"The disruption budget {name} does not allow evicting pods currently"


def _violation(message: str, retry: int = 0) -> TooManyRequests:
    details: dict[str, Any] = {"causes": [{"reason": "DisruptionBudget", "message": message}]}
    if retry:
        details["retryAfterSeconds"] = retry
    return TooManyRequests(VIOLATES, details=details)


def _busy(name: str) -> TooManyRequests:
    return _violation(f"The disruption budget {name} is still being processed by the server.", retry=10)


# The pod


async def _delete_pod(backend: Backend, entry: ServedResource, call: ApiCall, options: DeleteOptions) -> None:
    if not call.dry_run:
        options = await _mark_disruption_target(backend, entry, call, options)
    await delete(backend, entry, call, options)


async def _mark_disruption_target(
    backend: Backend, entry: ServedResource, call: ApiCall, options: DeleteOptions
) -> DeleteOptions:
    """Set the DisruptionTarget condition; a resourceVersion precondition then refers to this write."""
    condition = PodCondition(
        type="DisruptionTarget",
        status="True",
        reason="EvictionByEvictionAPI",
        message="Eviction API: evicting",
        last_transition_time=clock.stamp(call.now),
    )

    async def set_condition(pod: Pod, record: StoreRecord) -> Any:
        check_preconditions(entry, call.name, pod.metadata, record, options)
        if pod.is_deleting:
            return pod
        others = tuple(c for c in pod.status.conditions if c.type != condition.type)
        return structs.replace(pod, status=structs.replace(pod.status, conditions=(*others, condition)))

    written = await modify(backend, entry, call, set_condition, SERVER_WRITE)
    held = options.preconditions
    if held is None or held.resource_version is None:
        return options
    exact = structs.replace(held, resource_version=str(written.revision))
    return structs.replace(options, preconditions=exact)
