"""ResourceQuotas: which resources and scopes they may name. `quota_admission` enforces them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import to_builtins

from volplane.api import quantity
from volplane.api.core import ResourceQuota, ResourceQuotaSpec, ScopedResourceSelectorRequirement
from volplane.api.errors import Causes, invalid, required_value
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategy import ApiCall, Strategy
from volplane.rules.quotas import pods
from volplane.rules.quotas.usage import (
    ATTRIBUTES_CLASS,
    CLAIMS,
    LOAD_BALANCERS,
    NODE_PORTS,
    SERVICES,
    STORAGE,
)

_COMPUTE = frozenset(
    f"{prefix}{name}" for prefix in ("", "requests.", "limits.") for name in ("cpu", "memory")
)
_NUMBERS = frozenset(
    {"pods", "resourcequotas", "replicationcontrollers", "secrets", "configmaps"}
    | {SERVICES, CLAIMS, NODE_PORTS, LOAD_BALANCERS}
)
_STANDARD = _COMPUTE | _NUMBERS | {STORAGE} | {f"{p}ephemeral-storage" for p in ("", "requests.", "limits.")}
_HUGE_PAGES = ("hugepages-", "requests.hugepages-")

_OF_PODS = _COMPUTE | {"pods"}
# Scope → the standard resources that it may be combined with.
_SCOPES: Mapping[str, Collection[str]] = {
    pods.TERMINATING: _OF_PODS,
    pods.NOT_TERMINATING: _OF_PODS,
    pods.BEST_EFFORT: {"pods"},
    pods.NOT_BEST_EFFORT: _OF_PODS,
    pods.PRIORITY_CLASS: _OF_PODS,
    pods.CROSS_NAMESPACE_AFFINITY: _OF_PODS,
    ATTRIBUTES_CLASS: {CLAIMS, STORAGE},
}
_CONFLICTING = (
    {pods.BEST_EFFORT, pods.NOT_BEST_EFFORT},
    {pods.TERMINATING, pods.NOT_TERMINATING},
)
_EXISTS_ONLY = frozenset(_SCOPES) - {pods.PRIORITY_CLASS, ATTRIBUTES_CLASS}
_MUST_EXIST = (
    "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, "
    "ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or "
    "ResourceQuotaScopeCrossNamespacePodAffinity"
)
_WRONG_RESOURCE = "unsupported scope applied to resource"


class ResourceQuotaStrategy(Strategy[ResourceQuota]):
    def validate_create(self, call: ApiCall, obj: ResourceQuota) -> Causes:
        yield from _amounts("spec.hard", obj.spec.hard)
        yield from _scopes(obj.spec)
        yield from _scope_selector(obj.spec)

    def validate_update(self, call: ApiCall, old: ResourceQuota, new: ResourceQuota) -> Causes:
        yield from self.validate_create(call, new)
        if set(old.spec.scopes) != set(new.spec.scopes):
            yield invalid("spec.scopes", list(new.spec.scopes), checks.IMMUTABLE)

    def validate_status(self, call: ApiCall, old: ResourceQuota, new: ResourceQuota) -> Causes:
        yield from _amounts("status.hard", new.status.hard)
        yield from _amounts("status.used", new.status.used)


def _amounts(path: str, amounts: Mapping[str, str]) -> Causes:
    for name, amount in sorted(amounts.items()):
        here = f"{path}[{name}]"
        yield from _resource_name(here, name)
        yield from checks.amount_not_negative(here, amount)
        if (name in _NUMBERS or pods.is_extended(name)) and quantity.milli(amount) % 1000:
            yield invalid(here, amount, "must be an integer")


def _resource_name(path: str, name: str) -> Causes:
    causes = checks.qualified_name(path, name)
    yield from causes
    if "/" in name or _is_standard(name):
        return
    if not causes and not is_standard_resource(name):
        yield invalid(path, name, "must be a standard resource type or fully qualified")
    yield invalid(path, name, "must be a standard resource for quota")


def is_standard_resource(name: str) -> bool:
    """Whether it is a resource of a quota, a container or a claim."""
    return name == "storage" or _is_standard(name)


def _is_standard(name: str) -> bool:
    return name in _STANDARD or name.startswith(_HUGE_PAGES)


def _scopes(spec: ResourceQuotaSpec) -> Causes:
    value = list(spec.scopes)
    for scope in spec.scopes:
        if scope not in _SCOPES:
            yield invalid("spec.scopes", value, "unsupported scope")
        for _ in _unfit_resources(scope, spec):
            yield invalid("spec.scopes", value, _WRONG_RESOURCE)
    for pair in _CONFLICTING:
        if pair <= set(spec.scopes):
            yield invalid("spec.scopes", value, "conflicting scopes")


def _scope_selector(spec: ResourceQuotaSpec) -> Causes:
    if spec.scope_selector is None:
        return
    path = "spec.scopeSelector.matchExpressions"
    needs = spec.scope_selector.match_expressions
    for need in needs:
        if need.scope_name not in _SCOPES:
            yield invalid(f"{path}.scopeName", need.scope_name, "unsupported scope")
        for _ in _unfit_resources(need.scope_name, spec):
            yield invalid(path, to_builtins(spec.scope_selector), _WRONG_RESOURCE)
        yield from _requirement(path, need)
    for pair in _CONFLICTING:
        if pair <= {need.scope_name for need in needs}:
            yield invalid(path, list(spec.scopes), "conflicting scopes")


def _unfit_resources(scope: str, spec: ResourceQuotaSpec) -> list[str]:
    if scope not in _SCOPES:
        return []
    return [name for name in sorted(spec.hard) if _is_standard(name) and name not in _SCOPES[scope]]


def _requirement(path: str, need: ScopedResourceSelectorRequirement) -> Causes:
    if need.scope_name in _EXISTS_ONLY and need.operator != "Exists":
        yield invalid(f"{path}.operator", need.operator, _MUST_EXIST)
    match need.operator:
        case "In" | "NotIn":
            if not need.values:
                why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
                yield required_value(f"{path}.values", why)
        case "Exists" | "DoesNotExist":
            if need.values:
                why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
                yield invalid(f"{path}.values", list(need.values), why)
        case _:
            yield invalid(f"{path}.operator", need.operator, "not a valid selector operator")
