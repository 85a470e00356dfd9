"""What a terminating namespace still holds, and what its conditions say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from volplane.api.core import Namespace, NamespaceCondition
from volplane.api.kinds import Kind
from volplane.api.meta import Resource

FINALIZER = "kubernetes"


def order(kinds: Sequence[Kind]) -> list[Kind]:
    """Everything but pods first: what makes pods goes before them."""
    return sorted((k for k in kinds if k.namespaced), key=lambda k: k.kind == "Pod")


def conditions(
    namespace: Namespace, left: Mapping[str, Sequence[Resource]], now: str
) -> tuple[NamespaceCondition, ...]:
    """Upstream's five conditions for what is left, by resource name."""
    remaining = {name: objects for name, objects in left.items() if objects}
    counts = ", ".join(
        f"{name} has {len(objects)} resource instances" for name, objects in sorted(remaining.items())
    )
    holders: dict[str, int] = {}
    for objects in remaining.values():
        for finalizer in (f for o in objects for f in o.metadata.finalizers):
            holders[finalizer] = holders.get(finalizer, 0) + 1
    held = ", ".join(f"{name} in {count} resource instances" for name, count in sorted(holders.items()))
    made = [
        _condition(
            "NamespaceDeletionDiscoveryFailure",
            "",
            "ResourcesDiscovered",
            "All resources successfully discovered",
            now,
        ),
        _condition(
            "NamespaceDeletionGroupVersionParsingFailure",
            "",
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
            now,
        ),
        _condition(
            "NamespaceDeletionContentFailure",
            "",
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
            now,
        ),
        _condition(
            "NamespaceContentRemaining",
            f"Some resources are remaining: {counts}" if counts else "",
            "SomeResourcesRemain" if counts else "ContentRemoved",
            "All content successfully removed",
            now,
        ),
        _condition(
            "NamespaceFinalizersRemaining",
            f"Some content in the namespace has finalizers remaining: {held}" if held else "",
            "SomeFinalizersRemain" if held else "ContentHasNoFinalizers",
            "All content-preserving finalizers finished",
            now,
        ),
    ]
    known = {c.type: c for c in namespace.status.conditions}
    return tuple(_unchanged(known.get(c.type), c) for c in made)


def _condition(type: str, trouble: str, reason: str, fine: str, now: str) -> NamespaceCondition:
    return NamespaceCondition(
        type=type,
        status="True" if trouble else "False",
        reason=reason,
        message=trouble or fine,
        last_transition_time=now,
    )


def _unchanged(old: NamespaceCondition | None, new: NamespaceCondition) -> NamespaceCondition:
    same = old and (old.status, old.reason, old.message) == (new.status, new.reason, new.message)
    return old if old is not None and same else new
