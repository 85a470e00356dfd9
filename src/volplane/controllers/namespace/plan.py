"""What to do about a terminating namespace, and what its conditions are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from volplane.api.core import Namespace, NamespaceCondition
from volplane.api.kinds import Kind
from volplane.api.meta import Resource
from volplane.rules.waits import Wait, WaitReason

FINALIZER = "kubernetes"
LOOK_AGAIN = 0.5  # seconds; only while objects inside wait for others (grace, finalizers)
RETRY = 5.0  # seconds after an error


class NamespaceView(Struct, frozen=True):
    namespace: Namespace
    now: str
    left: Mapping[str, Sequence[Resource]] | None = None  # by resource; None: nothing was deleted yet
    errors: tuple[str, ...] = ()  # of the deletion


class DeleteNamespaceContent(Struct, frozen=True):
    """Delete all objects of the namespace; the next plan knows what is left."""


class SetConditions(Struct, frozen=True):
    conditions: tuple[NamespaceCondition, ...]


class FinalizeNamespace(Struct, frozen=True):
    """Remove the finalizer: the namespace is empty."""


Step = DeleteNamespaceContent | SetConditions | FinalizeNamespace


def plan(view: NamespaceView) -> Iterator[Step | Wait]:
    namespace = view.namespace
    if not namespace.is_deleting or FINALIZER not in namespace.spec.finalizers:
        return
    if view.left is None:
        yield DeleteNamespaceContent()
        return
    made = conditions(namespace, view.left, view.now, view.errors)
    if made != namespace.status.conditions:
        yield SetConditions(made)
    if view.errors:
        yield Wait(WaitReason.NAMESPACE_CONTENT, seconds=RETRY)
    elif any(view.left.values()):
        yield Wait(WaitReason.NAMESPACE_CONTENT, seconds=LOOK_AGAIN)
    else:
        yield FinalizeNamespace()


def order(kinds: Sequence[Kind]) -> list[Kind]:
    """The kinds in the order of deletion: pods first, because they use the rest while they terminate."""
    return sorted((k for k in kinds if k.namespaced), key=lambda k: k.kind != "Pod")


def conditions(
    namespace: Namespace,
    left: Mapping[str, Sequence[Resource]],
    now: str,
    errors: Sequence[str] = (),
) -> tuple[NamespaceCondition, ...]:
    """Upstream's five conditions for what is left, by resource name, and for the errors of the deletion."""
    remaining = {name: objects for name, objects in left.items() if objects}
    counts = ", ".join(
        f"{name} has {len(objects)} resource instances" for name, objects in sorted(remaining.items())
    )
    finalizers: dict[str, int] = {}
    for objects in remaining.values():
        for finalizer in (f for o in objects for f in o.metadata.finalizers):
            finalizers[finalizer] = finalizers.get(finalizer, 0) + 1
    finalizers_left = ", ".join(
        f"{name} in {count} resource instances" for name, count in sorted(finalizers.items())
    )
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
            f"Failed to delete all resource types, {len(errors)} remaining: {', '.join(sorted(errors))}"
            if errors
            else "",
            "ContentDeletionFailed" if errors else "ContentDeleted",
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
            f"Some content in the namespace has finalizers remaining: {finalizers_left}"
            if finalizers_left
            else "",
            "SomeFinalizersRemain" if finalizers_left else "ContentHasNoFinalizers",
            "All content-preserving finalizers finished",
            now,
        ),
    ]
    known = {c.type: c for c in namespace.status.conditions}
    return tuple(_keep_if_same(known.get(c.type), c) for c in made)


def _condition(type: str, problem: str, reason: str, ok: str, now: str) -> NamespaceCondition:
    return NamespaceCondition(
        type=type,
        status="True" if problem else "False",
        reason=reason,
        message=problem or ok,
        last_transition_time=now,
    )


def _keep_if_same(old: NamespaceCondition | None, new: NamespaceCondition) -> NamespaceCondition:
    same = old and (old.status, old.reason, old.message) == (new.status, new.reason, new.message)
    return old if old is not None and same else new
