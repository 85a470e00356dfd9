"""Name conflicts: two definitions of one group may not share resource names or kinds.

The first definition owns a name until it gives it up; a later one keeps its previously accepted names and
waits. Nothing is refused: a definition with conflicting names is stored, and its conditions show the
conflict.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from volplane.api.apiextensions import CustomResourceDefinition as Definition
from volplane.api.apiextensions import CustomResourceDefinitionCondition as Condition
from volplane.api.apiextensions import CustomResourceDefinitionNames as Names
from volplane.apiserver.crd.definition.conditions import (
    ESTABLISHED,
    NAMES_ACCEPTED,
    condition,
    find,
    with_condition,
)

NO_CONFLICTS = condition(NAMES_ACCEPTED, "True", "NoConflicts", "no conflicts found")
NOT_ACCEPTED = condition(ESTABLISHED, "False", "NotAccepted", "not all names are accepted")
SERVED = condition(ESTABLISHED, "True", "InitialNamesAccepted", "the initial names have been accepted")


def accept_names(definition: Definition, others: Iterable[Definition], now: str) -> Definition:
    """Return the definition with its accepted names and the conditions that follow from them."""
    accepted, names_condition = _accept(definition, _names_in_use(definition, others))
    status = structs.replace(definition.status, accepted_names=accepted)
    definition = with_condition(structs.replace(definition, status=status), names_condition, now)
    return with_condition(definition, _established_condition(definition, names_condition), now)


def _established_condition(definition: Definition, names: Condition) -> Condition:
    """An established definition stays established, even if its names conflict later."""
    old = find(definition, ESTABLISHED)
    if old is not None and old.status == "True":
        return old
    return SERVED if names.status == "True" else NOT_ACCEPTED


def _names_in_use(definition: Definition, others: Iterable[Definition]) -> tuple[set[str], set[str]]:
    """Return the resource names and kinds of the other definitions in the group."""
    resources: set[str] = set()
    kinds: set[str] = set()
    for other in others:
        if other.spec.group != definition.spec.group or other.name == definition.name:
            continue
        names = other.status.accepted_names
        resources |= {names.plural, names.singular, *names.short_names}
        kinds |= {names.kind, names.list_kind}
    return resources - {""}, kinds - {""}


def _accept(definition: Definition, in_use: tuple[set[str], set[str]]) -> tuple[Names, Condition]:
    resources, kinds = in_use
    names, accepted = definition.spec.names, definition.status.accepted_names
    names_condition = NO_CONFLICTS
    changes = {"categories": names.categories}
    for field, word, used in (
        ("plural", "Plural", resources),
        ("singular", "Singular", resources),
        ("short_names", "ShortNames", resources),
        ("kind", "Kind", kinds),
        ("list_kind", "ListKind", kinds),
    ):
        requested, before = getattr(names, field), getattr(accepted, field)
        conflict = _conflict_message(requested, before, used)
        if conflict:
            names_condition = condition(NAMES_ACCEPTED, "False", f"{word}Conflict", conflict)
        else:
            changes[field] = requested
    return structs.replace(accepted, **changes), names_condition


def _conflict_message(requested: str | tuple[str, ...], before: str | tuple[str, ...], used: set[str]) -> str:
    if isinstance(requested, str):
        return f'"{requested}" is already in use' if requested != before and requested in used else ""
    wrong = [f'"{name}" is already in use' for name in requested if name not in before and name in used]
    return wrong[0] if len(wrong) == 1 else f"[{', '.join(wrong)}]" if wrong else ""
