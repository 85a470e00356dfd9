"""Conditions of a definition."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from volplane.api.apiextensions import CustomResourceDefinition as Definition
from volplane.api.apiextensions import CustomResourceDefinitionCondition as Condition
from volplane.api.apiextensions import CustomResourceDefinitionVersion as Version

ESTABLISHED, NAMES_ACCEPTED, TERMINATING = "Established", "NamesAccepted", "Terminating"
CONFORMANT = "KubernetesAPIApprovalPolicyConformant"
CLEANUP = "customresourcecleanup.apiextensions.k8s.io"  # finalizer: the instances are deleted first


def find(definition: Definition, type: str) -> Condition | None:
    return next((c for c in definition.status.conditions if c.type == type), None)


def holds(definition: Definition, type: str) -> bool:
    found = find(definition, type)
    return found is not None and found.status == "True"


def is_established(definition: Definition) -> bool:
    return holds(definition, ESTABLISHED)


def is_terminating(definition: Definition) -> bool:
    return holds(definition, TERMINATING)


def condition(type: str, status: str, reason: str, message: str) -> Condition:
    return Condition(type=type, status=status, reason=reason, message=message)


def with_condition(definition: Definition, new: Condition, now: str) -> Definition:
    """Set a condition; lastTransitionTime changes only with its status."""
    old = find(definition, new.type)
    since = old.last_transition_time if old is not None and old.status == new.status else ""
    result = structs.replace(new, last_transition_time=since or now)
    if old == result:
        return definition
    known = definition.status.conditions
    replaced = tuple(result if c.type == new.type else c for c in known)
    status = structs.replace(definition.status, conditions=replaced if old else (*known, result))
    return structs.replace(definition, status=status)


def storage_version(versions: Iterable[Version]) -> Version | None:
    return next((v for v in versions if v.storage), None)
