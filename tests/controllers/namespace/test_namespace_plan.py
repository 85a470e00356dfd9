"""A namespace that is being deleted: its content first, then its finalizer."""

from __future__ import annotations

from typing import Any

from volplane.api import codec, kinds
from volplane.api.core import ConfigMap, Namespace, Pod
from volplane.controllers.namespace.plan import (
    FINALIZER,
    LOOK_AGAIN,
    RETRY,
    DeleteNamespaceContent,
    FinalizeNamespace,
    NamespaceView,
    SetConditions,
    conditions,
    order,
    plan,
)
from volplane.rules.waits import Wait, WaitReason

NOW = "2026-01-01T00:00:00Z"


def namespace(
    *, deleting: bool = True, finalizers: tuple[str, ...] = (FINALIZER,), **status: Any
) -> Namespace:
    metadata = {"name": "apps", **({"deletionTimestamp": NOW} if deleting else {})}
    return codec.convert(
        Namespace, {"metadata": metadata, "spec": {"finalizers": list(finalizers)}, "status": status}
    )


def pod(*finalizers: str) -> Pod:
    return codec.convert(Pod, {"metadata": {"name": "p", "finalizers": list(finalizers)}})


def test_nothing_is_done_to_a_namespace_that_stays_or_is_finalized() -> None:
    assert list(plan(NamespaceView(namespace(deleting=False), NOW, None))) == []
    assert list(plan(NamespaceView(namespace(finalizers=()), NOW, None))) == []


def test_its_content_is_deleted_first() -> None:
    assert list(plan(NamespaceView(namespace(), NOW, None))) == [DeleteNamespaceContent()]


def test_it_waits_for_what_is_left() -> None:
    left = {"pods": [pod("example.com/mine"), pod()], "secrets": []}
    view = NamespaceView(namespace(), NOW, left)
    written, wait = plan(view)
    assert isinstance(written, SetConditions)
    assert wait == Wait(WaitReason.NAMESPACE_CONTENT, seconds=LOOK_AGAIN)
    shown = {c.type: (c.status, c.reason, c.message) for c in written.conditions}
    assert shown["NamespaceContentRemaining"] == (
        "True",
        "SomeResourcesRemain",
        "Some resources are remaining: pods has 2 resource instances",
    )
    assert shown["NamespaceFinalizersRemaining"] == (
        "True",
        "SomeFinalizersRemain",
        "Some content in the namespace has finalizers remaining: example.com/mine in 1 resource instances",
    )


def test_it_is_not_finalized_after_an_error() -> None:
    view = NamespaceView(namespace(), NOW, {"secrets": []}, errors=("secrets: no", "leases: no"))
    written, wait = plan(view)
    assert isinstance(written, SetConditions)
    assert wait == Wait(WaitReason.NAMESPACE_CONTENT, seconds=RETRY)
    (failure,) = [c for c in written.conditions if c.type == "NamespaceDeletionContentFailure"]
    assert (failure.status, failure.reason, failure.message) == (
        "True",
        "ContentDeletionFailed",
        "Failed to delete all resource types, 2 remaining: leases: no, secrets: no",
    )


def test_conditions_that_stay_keep_their_time() -> None:
    first = conditions(namespace(), {}, NOW)
    later = namespace(conditions=[codec.to_dict(c) for c in first])
    assert conditions(later, {}, "2026-01-01T00:01:00Z") == first
    assert list(plan(NamespaceView(later, "2026-01-01T00:01:00Z", {}))) == [FinalizeNamespace()]


def test_pods_are_deleted_first() -> None:
    everything = [kinds.of(kind) for kind in (ConfigMap, Pod, Namespace)]
    assert [kind.kind for kind in order(everything)] == ["Pod", "ConfigMap"]
