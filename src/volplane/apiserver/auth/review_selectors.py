"""The selectors of a SubjectAccessReview: given as text or as requirements, never both."""

from __future__ import annotations

from volplane.api.authorization import FieldSelectorAttributes, LabelSelectorAttributes, ResourceAttributes
from volplane.api.errors import Cause, invalid, required_value
from volplane.api.meta import LabelSelector
from volplane.api.selectors import FieldMatcher, FieldTerm, InvalidSelector, LabelMatcher, LabelRequirement

_SIGNS = {"In": False, "NotIn": True}  # operator: is it negated


def validate_selectors(attributes: ResourceAttributes) -> list[Cause]:
    here = "spec.resourceAttributes"
    return _validate_selector(f"{here}.fieldSelector", attributes.field_selector) + _validate_selector(
        f"{here}.labelSelector", attributes.label_selector
    )


def _validate_selector(
    path: str, given: FieldSelectorAttributes | LabelSelectorAttributes | None
) -> list[Cause]:
    if given is None:
        return []
    if given.raw_selector and given.requirements:
        detail = "may not specified at the same time as requirements"
        return [invalid(f"{path}.rawSelector", given.raw_selector, detail)]
    if not given.raw_selector and not given.requirements:
        detail = f"when {path} is specified, requirements or rawSelector is required"
        return [required_value(f"{path}.requirements", detail)]
    return []


def parse_field_selector(given: FieldSelectorAttributes) -> tuple[str, bool]:
    """Return the parsed part as selector text, and whether something could not be parsed."""
    if given.raw_selector:
        try:
            return str(FieldMatcher.parse(given.raw_selector)), False
        except InvalidSelector:
            return "", True
    terms = [
        FieldTerm(term.key, term.values[0], _SIGNS[term.operator])
        for term in given.requirements
        if term.operator in _SIGNS and len(term.values) == 1
    ]
    return str(FieldMatcher(tuple(terms))), len(terms) < len(given.requirements)


def parse_label_selector(given: LabelSelectorAttributes) -> tuple[LabelMatcher, bool]:
    """Return the parsed part, and whether something could not be parsed. No authorizer uses labels yet."""
    if given.raw_selector:
        try:
            return LabelMatcher.parse(given.raw_selector), False
        except InvalidSelector:
            return LabelMatcher(), True
    known: list[LabelRequirement] = []
    for term in given.requirements:
        try:
            known += LabelMatcher.of(LabelSelector(match_expressions=(term,))).requirements
        except InvalidSelector:
            continue
    return LabelMatcher(tuple(known)), len(known) < len(given.requirements)
