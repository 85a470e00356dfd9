"""The selectors that an access review asks about: as text or as terms, never both."""

from __future__ import annotations

from volplane.api.authorization import FieldSelectorAttributes, LabelSelectorAttributes, ResourceAttributes
from volplane.api.errors import Cause, invalid, required
from volplane.api.meta import LabelSelector
from volplane.api.selectors import BadSelector, Fields, FieldTerm, Labels, Requirement

_SIGNS = {"In": False, "NotIn": True}  # operator: is it negated


def wrong(about: ResourceAttributes) -> list[Cause]:
    here = "spec.resourceAttributes"
    return _one(f"{here}.fieldSelector", about.field_selector) + _one(
        f"{here}.labelSelector", about.label_selector
    )


def _one(path: str, given: FieldSelectorAttributes | LabelSelectorAttributes | None) -> list[Cause]:
    if given is None:
        return []
    if given.raw_selector and given.requirements:
        told = "may not specified at the same time as requirements"
        return [invalid(f"{path}.rawSelector", given.raw_selector, told)]
    if not given.raw_selector and not given.requirements:
        told = f"when {path} is specified, requirements or rawSelector is required"
        return [required(f"{path}.requirements", told)]
    return []


def fields(given: FieldSelectorAttributes) -> tuple[str, bool]:
    """What could be understood, as a selector's text; and whether something could not."""
    if given.raw_selector:
        try:
            return str(Fields.parse(given.raw_selector)), False
        except BadSelector:
            return "", True
    terms = [
        FieldTerm(term.key, term.values[0], _SIGNS[term.operator])
        for term in given.requirements
        if term.operator in _SIGNS and len(term.values) == 1
    ]
    return str(Fields(tuple(terms))), len(terms) < len(given.requirements)


def labels(given: LabelSelectorAttributes) -> tuple[Labels, bool]:
    """Nobody decides by labels yet; a reviewer is still told when they make no sense."""
    if given.raw_selector:
        try:
            return Labels.parse(given.raw_selector), False
        except BadSelector:
            return Labels(), True
    known: list[Requirement] = []
    for term in given.requirements:
        try:
            known += Labels.of(LabelSelector(match_expressions=(term,))).requirements
        except BadSelector:
            continue
    return Labels(tuple(known)), len(known) < len(given.requirements)
