"""Pods: admitted with a service account, a priority and tolerations; afterwards few fields may change."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from volplane.api import quantity
from volplane.api.annotations import MIRROR_POD_ANNOTATION
from volplane.api.core import Container, Pod, PodCondition, PodSpec, PodStatus
from volplane.api.errors import Causes, forbidden, invalid
from volplane.apiserver.defaults import GRACE_SECONDS
from volplane.apiserver.strategies.pods import admission, resize, spec, update
from volplane.apiserver.strategies.pods.admission import TolerationSeconds
from volplane.apiserver.strategy import ApiCall, Strategy
from volplane.apiserver.struct_edit import replace_fields, set_defaults
from volplane.base import clock


class PodStrategy(Strategy[Pod]):
    toleration_seconds = TolerationSeconds()

    async def admit_create(self, call: ApiCall, obj: Pod) -> Pod:
        return await admission.admit(call, obj, self.toleration_seconds)

    async def admit_update(self, call: ApiCall, old: Pod, new: Pod) -> Pod:
        if call.subresource:
            return new
        # What admission set on create is set again if the writer leaves it out.
        kept = set_defaults(
            new.spec, priority=old.spec.priority, preemption_policy=old.spec.preemption_policy
        )
        return replace_fields(new, spec=admission.with_default_tolerations(kept, self.toleration_seconds))

    def prepare_create(self, call: ApiCall, obj: Pod) -> Pod:
        status = PodStatus(phase="Pending", qos_class=qos_class(obj.spec))
        if obj.spec.scheduling_gates:
            status = structs.replace(status, conditions=(_scheduling_gated_condition(call),))
        return structs.replace(obj, status=status)

    def prepare_status(self, call: ApiCall, old: Pod, new: Pod) -> Pod:
        made = super().prepare_status(call, old, new)
        # A status update may not change the owners.
        owners = old.metadata.owner_references
        return structs.replace(
            made,
            metadata=structs.replace(made.metadata, owner_references=owners),
            status=structs.replace(made.status, qos_class=old.status.qos_class),
        )

    def validate_create(self, call: ApiCall, obj: Pod) -> Causes:
        yield from _validate_spec(obj)
        value = obj.metadata.annotations.get(MIRROR_POD_ANNOTATION)
        if value is not None and not obj.spec.node_name:
            path = f"metadata.annotations[{MIRROR_POD_ANNOTATION}]"
            yield invalid(path, value, "must set spec.nodeName if mirror pod annotation is set")
        if obj.spec.ephemeral_containers:
            yield forbidden("spec.ephemeralContainers", "cannot be set on create")
        if obj.spec.node_name and obj.spec.scheduling_gates:
            yield forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")

    def prepare_update(self, call: ApiCall, old: Pod, new: Pod) -> Pod:
        if call.subresource == "ephemeralcontainers":
            spec = structs.replace(old.spec, ephemeral_containers=new.spec.ephemeral_containers)
            return structs.replace(old, spec=spec)
        if call.subresource == "resize":
            return structs.replace(old, spec=resize.apply_resources(old.spec, new.spec))
        return super().prepare_update(call, old, new)

    def validate_update(self, call: ApiCall, old: Pod, new: Pod) -> Causes:
        if call.subresource == "ephemeralcontainers":
            yield from _validate_spec(new)
            yield from update.validate_ephemeral(old, new)
            return
        if call.subresource == "resize":
            yield from resize.validate(old, new, qos_class(old.spec), qos_class(new.spec))
            return
        yield from update.validate_annotations(old, new)
        if old.spec == new.spec:
            return
        yield from _validate_spec(new)
        yield from update.validate(old, new)

    def validate_status(self, call: ApiCall, old: Pod, new: Pod) -> Causes:
        return update.validate_status(old, new)

    def grace(self, call: ApiCall, obj: Pod, requested: int | None) -> int:
        """No grace period for a pod that never ran or has ended."""
        if not obj.spec.node_name or obj.status.phase in ("Succeeded", "Failed"):
            return 0
        seconds = obj.spec.termination_grace_period_seconds if requested is None else requested
        if seconds is None:
            return GRACE_SECONDS
        return seconds if seconds >= 0 else 1


def _validate_spec(pod: Pod) -> Causes:
    return spec.pod_spec("spec", pod.spec, pod=pod.metadata.name)


def _scheduling_gated_condition(call: ApiCall) -> PodCondition:
    return PodCondition(
        type="PodScheduled",
        status="False",
        last_transition_time=clock.stamp(call.now),
        reason="SchedulingGated",
        message="Scheduling is blocked due to non-empty scheduling gates",
    )


_COMPUTE = ("cpu", "memory")


def qos_class(pod: PodSpec) -> str:
    """Guaranteed: requests equal limits in every container. BestEffort: no requests and no limits."""
    every = (*pod.containers, *pod.init_containers)
    if all(_is_guaranteed(container) for container in every) and every:
        return "Guaranteed"
    return "Burstable" if any(_requests_compute(every)) else "BestEffort"


def _is_guaranteed(container: Container) -> bool:
    limits, requests = container.resources.limits, container.resources.requests
    return all(
        quantity.parse(limits.get(name, "0")) > 0
        and quantity.parse(requests.get(name, limits.get(name, "0"))) == quantity.parse(limits.get(name, "0"))
        for name in _COMPUTE
    )


def _requests_compute(containers: Iterable[Container]) -> Iterable[bool]:
    for container in containers:
        for amounts in (container.resources.limits, container.resources.requests):
            yield any(name in amounts and quantity.parse(amounts[name]) > 0 for name in _COMPUTE)
