"""PriorityClasses and RuntimeClasses: value, preemption policy and handler are immutable."""

from __future__ import annotations

from volplane.api.errors import Causes, Forbidden, forbidden
from volplane.api.noderuntime import RuntimeClass
from volplane.api.scheduling import PriorityClass
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.pods.spec import PREEMPTION
from volplane.apiserver.strategy import ApiCall, Strategy

HIGHEST = 1_000_000_000
SYSTEM = "system-"


class PriorityClassStrategy(Strategy[PriorityClass]):
    async def admit_create(self, call: ApiCall, obj: PriorityClass) -> PriorityClass:
        await _only_default(call, obj)
        return obj

    async def admit_update(self, call: ApiCall, old: PriorityClass, new: PriorityClass) -> PriorityClass:
        await _only_default(call, new)
        return new

    def validate_create(self, call: ApiCall, obj: PriorityClass) -> Causes:
        if obj.name.startswith(SYSTEM) and obj.name not in (
            "system-cluster-critical",
            "system-node-critical",
        ):
            message = (
                f"priority class names with '{SYSTEM}' prefix are reserved for system use only. error: "
                f"{obj.name} is not a known system priority class"
            )
            yield forbidden("metadata.name", message)
        elif obj.value > HIGHEST and not obj.name.startswith(SYSTEM):
            yield forbidden("value", f"maximum allowed value of a user defined priority is {HIGHEST}")
        yield from checks.one_of("preemptionPolicy", obj.preemption_policy or "", PREEMPTION)

    def validate_update(self, call: ApiCall, old: PriorityClass, new: PriorityClass) -> Causes:
        if old.value != new.value:
            yield forbidden("value", "may not be changed in an update.")
        yield from checks.immutable_field("preemptionPolicy", new.preemption_policy, old.preemption_policy)


async def _only_default(call: ApiCall, one: PriorityClass) -> None:
    if not one.global_default:
        return
    for other in await call.reader.list(PriorityClass):
        if other.global_default and other.name != one.name:
            message = f"PriorityClass {other.name} is already marked as default. Only one default can exist"
            raise Forbidden.to(call.kind, one.name, message)


class RuntimeClassStrategy(Strategy[RuntimeClass]):
    def validate_create(self, call: ApiCall, obj: RuntimeClass) -> Causes:
        return checks.label("handler", obj.handler)

    def validate_update(self, call: ApiCall, old: RuntimeClass, new: RuntimeClass) -> Causes:
        return checks.immutable_field("handler", new.handler, old.handler)
