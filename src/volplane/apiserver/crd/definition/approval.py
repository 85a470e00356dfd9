"""Protected groups (*.k8s.io, *.kubernetes.io) need an annotation that shows the API's approval."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from urllib.parse import urlsplit

from volplane.api.apiextensions import CustomResourceDefinition as Definition
from volplane.api.apiextensions import CustomResourceDefinitionCondition as Condition
from volplane.api.errors import Cause, invalid, required_value
from volplane.apiserver.crd.definition.conditions import CONFORMANT, condition

ANNOTATION = "api-approved.kubernetes.io"
_ANNOTATION_PATH = f"metadata.annotations[{ANNOTATION}]"
_SEE = "see https://github.com/kubernetes/enhancements/pull/1111"


class ApprovalState(StrEnum):
    """The state of the annotation; the values are the reasons of the condition."""

    INVALID = "InvalidAnnotation"
    MISSING = "MissingAnnotation"
    APPROVED = "ApprovedAnnotation"
    BYPASSED = "UnapprovedAnnotation"


def is_protected(group: str) -> bool:
    return any(group == domain or group.endswith(f".{domain}") for domain in ("k8s.io", "kubernetes.io"))


def approval_state(annotations: Mapping[str, str]) -> tuple[ApprovalState, str]:
    text = annotations.get(ANNOTATION, "")
    if not text:
        return ApprovalState.MISSING, f'protected groups must have approval annotation "{ANNOTATION}", {_SEE}'
    if text.startswith("unapproved"):
        return ApprovalState.BYPASSED, f'not approved: "{text}"'
    if _is_url(text):
        return ApprovalState.APPROVED, f"approved in {text}"
    message = f'protected groups must have approval annotation "{ANNOTATION}" with either a URL or a reason'
    return ApprovalState.INVALID, f'{message} starting with "unapproved", {_SEE}'


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return bool(parts.scheme and parts.netloc)


def validate(new: Definition, old: Definition | None = None) -> list[Cause]:
    if not is_protected(new.spec.group):
        return []
    found, why = approval_state(new.metadata.annotations)
    if old is not None and approval_state(old.metadata.annotations)[0] == found:
        return []
    if found == ApprovalState.MISSING:
        return [required_value(_ANNOTATION_PATH, why)]
    return (
        [invalid(_ANNOTATION_PATH, new.metadata.annotations[ANNOTATION], why)]
        if found == ApprovalState.INVALID
        else []
    )


def approval_condition(definition: Definition) -> Condition | None:
    """Return the condition for a protected group, else None."""
    if not is_protected(definition.spec.group):
        return None
    found, why = approval_state(definition.metadata.annotations)
    return condition(CONFORMANT, "True" if found == ApprovalState.APPROVED else "False", found.value, why)
