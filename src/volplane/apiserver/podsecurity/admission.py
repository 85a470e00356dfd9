"""Apply the Pod Security levels of a namespace to writes.

Pods that violate the level are refused; workloads only cause a warning, because their pods will be refused.
The checks run after validation, on the object as it will be stored. A namespace without labels costs one
lookup.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from volplane.api.apps import DaemonSet, Deployment, ReplicaSet, StatefulSet
from volplane.api.batch import CronJob, Job
from volplane.api.core import (
    Container,
    EphemeralContainer,
    Namespace,
    Pod,
    PodSpec,
    PodTemplate,
    PodTemplateSpec,
    ReplicationController,
)
from volplane.api.errors import Forbidden, InternalError, Invalid
from volplane.api.meta import ObjectMeta
from volplane.apiserver.auth.admission import AdmissionPlugin
from volplane.apiserver.auth.go_format import go_quote
from volplane.apiserver.podsecurity.policy import (
    PREFIX,
    LevelVersion,
    PodSecurityLevels,
    is_stricter,
    read_policy,
)
from volplane.apiserver.podsecurity.standards import PodSecurityViolation, evaluate
from volplane.apiserver.strategy import ApiCall

MOST_PODS = 3000  # pods that are checked when the level of a namespace is raised
ENFORCED, VIOLATIONS, ERROR = f"{PREFIX}enforce-policy", f"{PREFIX}audit-violations", f"{PREFIX}error"

_TEMPLATED = (Deployment, ReplicaSet, StatefulSet, DaemonSet, Job)
_WORKLOADS = frozenset({*_TEMPLATED, CronJob, PodTemplate, ReplicationController})
_CHECKED_TYPES = _WORKLOADS | {Pod, Namespace}
_NO_SPEC = frozenset({"status", "binding", "eviction"})  # subresources that do not change the containers


class PodSecurity(AdmissionPlugin):
    """An admission plugin, see `auth.admission`."""

    async def validate_create(self, call: ApiCall, obj: Any) -> None:
        if type(obj) not in _CHECKED_TYPES:
            return
        if isinstance(obj, Namespace):
            if causes := read_policy(obj.metadata.labels).causes:
                raise Invalid.of(call.kind, obj.name, causes)
        elif isinstance(obj, Pod):
            await _check_pod(call, obj)
        else:
            await _warn_of_template(call, obj)

    async def validate_update(self, call: ApiCall, old: Any, new: Any) -> None:
        if type(new) not in _CHECKED_TYPES:
            return
        if isinstance(new, Pod):
            if call.subresource not in _NO_SPEC and _images_changed(old.spec, new.spec):
                await _check_pod(call, new)
        elif call.subresource:
            return
        elif isinstance(new, Namespace):
            await _update_namespace(call, old, new)
        else:
            await _warn_of_template(call, new)


# --- pods and workloads


async def _check_pod(call: ApiCall, pod: Pod) -> None:
    policy = await _policy_of(call)
    call.annotations[ENFORCED] = str(policy.enforce)
    if policy.allows_all:
        return
    if found := evaluate(policy.enforce, pod.metadata, pod.spec):
        _audit(call, policy, pod.metadata, pod.spec)
        why = f"violates PodSecurity {_describe_violations(policy.enforce, found)}"
        raise Forbidden.to(call.kind, pod.name or call.name, why)
    _audit(call, policy, pod.metadata, pod.spec)
    if policy.warn != policy.enforce:
        _warn(call, policy.warn, pod.metadata, pod.spec)


async def _warn_of_template(call: ApiCall, obj: Any) -> None:
    policy = await _policy_of(call)
    template = None if policy.has_no_audit_or_warn else _template(obj)
    if template is not None:
        _audit(call, policy, template.metadata, template.spec)
        _warn(call, policy.warn, template.metadata, template.spec)


async def _policy_of(call: ApiCall) -> PodSecurityLevels:
    namespace = await call.reader.get(Namespace, call.namespace)
    if namespace is None:
        raise InternalError.because(f"failed to lookup namespace {go_quote(call.namespace)}")
    return read_policy(namespace.metadata.labels)


def _template(obj: Any) -> PodTemplateSpec | None:
    template: PodTemplateSpec | None
    if isinstance(obj, CronJob):
        template = obj.spec.job_template.spec.template
    else:
        template = obj.template if isinstance(obj, PodTemplate) else obj.spec.template
    return template


def _describe_violations(level: LevelVersion, found: Iterable[PodSecurityViolation]) -> str:
    return f'"{level}": {", ".join(map(str, found))}'


def _warn(call: ApiCall, level: LevelVersion, meta: ObjectMeta, spec: PodSpec) -> None:
    if found := evaluate(level, meta, spec):
        _add_warnings(call, [f"would violate PodSecurity {_describe_violations(level, found)}"])


def _audit(call: ApiCall, policy: PodSecurityLevels, meta: ObjectMeta, spec: PodSpec) -> None:
    if policy.causes:
        call.annotations[ERROR] = f"Failed to parse policy: {', '.join(map(str, policy.causes))}"
    if found := evaluate(policy.audit, meta, spec):
        call.annotations[VIOLATIONS] = (
            f"would violate PodSecurity {_describe_violations(policy.audit, found)}"
        )


def _add_warnings(call: ApiCall, warnings: Iterable[str]) -> None:
    """Add warnings without duplicates: a write that lost a race is checked again."""
    call.warnings.extend(warning for warning in warnings if warning not in call.warnings)


def _images_changed(old: PodSpec, new: PodSpec) -> bool:
    """Return whether an image changed: the checks depend on no other mutable field of a pod."""
    if old is new:
        return False
    if _images(old.containers) != _images(new.containers):
        return True
    if _images(old.init_containers) != _images(new.init_containers):
        return True
    debuggers = {container.name: container.image for container in old.ephemeral_containers}
    return any(debuggers.get(c.name) != c.image for c in new.ephemeral_containers)


def _images(containers: Iterable[Container | EphemeralContainer]) -> list[str]:
    return [container.image for container in containers]


# --- namespaces


async def _update_namespace(call: ApiCall, old: Namespace, new: Namespace) -> None:
    if old.metadata.labels == new.metadata.labels:
        return
    before, after = read_policy(old.metadata.labels), read_policy(new.metadata.labels)
    if after.causes and after.causes != before.causes:
        raise Invalid.of(call.kind, new.name, after.causes)
    if is_stricter(after.enforce, before.enforce):
        pods = await call.reader.list(Pod, new.name)
        _add_warnings(call, _violations(new.name, after.enforce, pods))


def _violations(namespace: str, level: LevelVersion, pods: Iterable[Pod]) -> list[str]:
    """Return warnings about existing pods that violate the new level; similar pods are combined."""
    ordered = _one_per_controller_first(pods)
    names: dict[str, list[str]] = {}
    for pod in ordered[:MOST_PODS]:
        if found := evaluate(level, pod.metadata, pod.spec):
            names.setdefault(", ".join(finding.reason for finding in found), []).append(pod.name)
    warnings = []
    if len(ordered) > MOST_PODS:
        text = f"only checked against the first {MOST_PODS} of {len(ordered)} existing pods"
        warnings.append(f"new PodSecurity enforce level {text}")
    if names:
        text = f'violate the new PodSecurity enforce level "{level}"'
        warnings.append(f'existing pods in namespace "{namespace}" {text}')
    return warnings + sorted(f"{_name_with_count(pods)}: {reasons}" for reasons, pods in names.items())


def _one_per_controller_first(pods: Iterable[Pod]) -> list[Pod]:
    """Sort one pod of each controller to the front, because the others are usually alike."""
    first: list[Pod] = []
    more: list[Pod] = []
    seen: set[str] = set()
    for pod in pods:
        owner = next((ref.uid for ref in pod.metadata.owner_references if ref.controller), "")
        (more if owner in seen else first).append(pod)
        if owner:
            seen.add(owner)
    return first + more


def _name_with_count(pods: list[str]) -> str:
    others = len(pods) - 1
    if not others:
        return pods[0]
    return f"{min(pods)} (and {others} other pod{'' if others == 1 else 's'})"
