"""Namespaces: labelled with their name, and removed only when they are empty."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from volplane.api.core import Namespace, NamespaceSpec, NamespaceStatus
from volplane.api.errors import Causes, Forbidden
from volplane.api.kinds import Kind
from volplane.api.labels import NAMESPACE_NAME_LABEL
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategy import ApiCall, Strategy
from volplane.apiserver.struct_edit import replace_fields, set_defaults

FINALIZER = "kubernetes"
PERMANENT = frozenset({"default", "kube-system", "kube-public"})


def _has_no_objects(namespace: str) -> bool:
    return False


class NamespaceStrategy(Strategy[Namespace]):
    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self.has_other_objects: Callable[[str], bool] = (
            _has_no_objects  # custom resources: see crd.namespace_cleanup
        )

    def defaults(self, obj: Namespace, old: Namespace | None = None) -> Namespace:
        return replace_fields(_add_name_label(obj), status=set_defaults(obj.status, phase="Active"))

    async def admit_delete(self, call: ApiCall, obj: Namespace) -> None:
        if obj.name in PERMANENT:
            raise Forbidden.to(call.kind, obj.name, "this namespace may not be deleted")

    def prepare_create(self, call: ApiCall, obj: Namespace) -> Namespace:
        held = obj.spec.finalizers
        finalizers = held if FINALIZER in held else (*held, FINALIZER)
        # A generated name is known only here.
        return structs.replace(
            _add_name_label(obj),
            spec=NamespaceSpec(finalizers=finalizers),
            status=NamespaceStatus(phase="Active"),
        )

    def prepare_update(self, call: ApiCall, old: Namespace, new: Namespace) -> Namespace:
        if call.subresource == "finalize":
            return structs.replace(new, status=old.status)
        return structs.replace(new, spec=old.spec, status=old.status)

    def validate_create(self, call: ApiCall, obj: Namespace) -> Causes:
        return [
            cause
            for at, name in enumerate(obj.spec.finalizers)
            for cause in checks.qualified_name(f"spec.finalizers[{at}]", name)
        ]

    def validate_update(self, call: ApiCall, old: Namespace, new: Namespace) -> Causes:
        return self.validate_create(call, new) if call.subresource == "finalize" else []

    def mark_deleted(self, call: ApiCall, obj: Namespace) -> Namespace:
        return replace_fields(obj, status=replace_fields(obj.status, phase="Terminating"))

    def is_removable(self, obj: Namespace) -> bool:
        return not obj.spec.finalizers and not self.has_other_objects(obj.name)


def _add_name_label(obj: Namespace) -> Namespace:
    meta = obj.metadata
    if not meta.name or meta.labels.get(NAMESPACE_NAME_LABEL) == meta.name:
        return obj
    return structs.replace(
        obj, metadata=structs.replace(meta, labels={**meta.labels, NAMESPACE_NAME_LABEL: meta.name})
    )
