"""PersistentVolumeClaims get a storage class and a finalizer; once bound, size and attributes may change.

Expanding a bound claim requires `allowVolumeExpansion` of its class (`admit_update`, 403). Changing the size
of a claim that is not bound is rejected by validation (422).
"""

from __future__ import annotations

from msgspec import structs

from volplane.api import core, quantity
from volplane.api.annotations import BETA_STORAGE_CLASS_ANNOTATION
from volplane.api.errors import Causes, Forbidden, forbidden, not_supported
from volplane.api.finalizers import PVC_PROTECTION_FINALIZER
from volplane.api.storage import StorageClass
from volplane.apiserver.strategies import checks, claim_spec
from volplane.apiserver.strategies.finalizers import add_finalizer
from volplane.apiserver.strategy import ApiCall, Strategy
from volplane.apiserver.struct_edit import replace_fields
from volplane.rules import classes
from volplane.rules.binding import claim_class

IMMUTABLE = (
    "spec is immutable after creation except resources.requests "
    "and volumeAttributesClassName for bound claims"
)
RESIZE_STATES = (
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizePending",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
)
SNAPSHOTS = "snapshot.storage.k8s.io"


class PersistentVolumeClaimStrategy(Strategy[core.PersistentVolumeClaim]):
    async def admit_create(
        self, call: ApiCall, obj: core.PersistentVolumeClaim
    ) -> core.PersistentVolumeClaim:
        return await _set_default_class(call, add_finalizer(obj, PVC_PROTECTION_FINALIZER))

    async def admit_update(
        self, call: ApiCall, old: core.PersistentVolumeClaim, new: core.PersistentVolumeClaim
    ) -> core.PersistentVolumeClaim:
        if new.spec is old.spec:
            return new
        if call.subresource or old.status.phase != "Bound" or not _grows(old, new):
            return new
        name = claim_class(new)
        chosen = await call.reader.get(StorageClass, name) if name and name == claim_class(old) else None
        if chosen is None or not chosen.allow_volume_expansion:
            raise Forbidden.to(
                call.kind,
                old.name,
                "only dynamically provisioned pvc can be resized and "
                "the storageclass that provisions the pvc must support resize",
            )
        return new

    def prepare_create(self, call: ApiCall, obj: core.PersistentVolumeClaim) -> core.PersistentVolumeClaim:
        status = core.PersistentVolumeClaimStatus(phase="Pending")
        return replace_fields(obj, status=status, spec=_data_sources(obj.spec, None))

    def prepare_update(
        self, call: ApiCall, old: core.PersistentVolumeClaim, new: core.PersistentVolumeClaim
    ) -> core.PersistentVolumeClaim:
        made = super().prepare_update(call, old, new)
        if new.spec is old.spec:
            return made
        return replace_fields(made, spec=_data_sources(made.spec, old.spec))

    def validate_create(self, call: ApiCall, obj: core.PersistentVolumeClaim) -> Causes:
        return claim_spec.validate("spec", obj.spec)

    def validate_update(
        self, call: ApiCall, old: core.PersistentVolumeClaim, new: core.PersistentVolumeClaim
    ) -> Causes:
        if new.spec is old.spec:
            yield from _class_annotation(old, new)
            return
        yield from claim_spec.validate("spec", new.spec)
        yield from _class_annotation(old, new)
        frozen = _without_mutable_fields(old, new)
        if frozen != _with_volume_name(old, new):
            yield forbidden("spec", f"{IMMUTABLE}\n{checks.difference(_with_volume_name(old, new), frozen)}")
        yield from _check_shrink(old, new)
        yield from checks.immutable_field("volumeMode", new.spec.volume_mode, old.spec.volume_mode)
        yield from _attributes_class(old, new)

    def validate_status(
        self, call: ApiCall, old: core.PersistentVolumeClaim, new: core.PersistentVolumeClaim
    ) -> Causes:
        yield from checks.present("Spec.accessModes", new.spec.access_modes)
        path = "status.allocatedResourceStatuses"
        for name, state in new.status.allocated_resource_statuses.items():
            yield from _resource_key(path, name)
            if state not in RESIZE_STATES:
                yield not_supported(path, name, sorted(RESIZE_STATES))
        for name, amount in new.status.allocated_resources.items():
            bad = list(_resource_key("status.allocatedResources", name))
            yield from bad or checks.amount_not_negative(f"status.allocatedResources[{name}]", amount)
        for name, amount in new.status.capacity.items():
            yield from checks.amount_not_negative(f"status.capacity[{name}]", amount)


async def _set_default_class(call: ApiCall, obj: core.PersistentVolumeClaim) -> core.PersistentVolumeClaim:
    if obj.spec.storage_class_name is not None or BETA_STORAGE_CLASS_ANNOTATION in obj.metadata.annotations:
        return obj
    chosen = classes.default(await call.reader.list(StorageClass))
    if chosen is None:
        return obj
    return structs.replace(obj, spec=structs.replace(obj.spec, storage_class_name=chosen.name))


def _size(claim: core.PersistentVolumeClaim) -> str:
    return claim.spec.resources.requests.get("storage", "0")


def _grows(old: core.PersistentVolumeClaim, new: core.PersistentVolumeClaim) -> bool:
    return quantity.parse(_size(new)) > quantity.parse(_size(old))


# Data sources


def _data_sources(
    spec: core.PersistentVolumeClaimSpec, old: core.PersistentVolumeClaimSpec | None
) -> core.PersistentVolumeClaimSpec:
    """Copy between dataSource, which allows claims and snapshots only, and dataSourceRef."""
    source, ref = spec.data_source, spec.data_source_ref
    held = old is not None and (old.data_source is not None or old.data_source_ref is not None)
    if ref is not None and ref.namespace and not held:
        ref = None
    if ref is None and source is not None and not held and not _is_claim_or_snapshot(source):
        source = None
    if source is not None and ref is None:
        ref = core.TypedObjectReference(api_group=source.api_group, kind=source.kind, name=source.name)
    elif source is None and ref is not None and not ref.namespace:
        source = core.TypedLocalObjectReference(api_group=ref.api_group, kind=ref.kind, name=ref.name)
    return replace_fields(spec, data_source=source, data_source_ref=ref)


def _is_claim_or_snapshot(source: core.TypedLocalObjectReference) -> bool:
    return (source.api_group or "", source.kind) in (
        ("", "PersistentVolumeClaim"),
        (SNAPSHOTS, "VolumeSnapshot"),
    )


# Updates


def _with_volume_name(
    old: core.PersistentVolumeClaim, new: core.PersistentVolumeClaim
) -> core.PersistentVolumeClaimSpec:
    """The old spec with the new volume name if it had none: the binder sets it once."""
    return replace_fields(old.spec, volume_name=old.spec.volume_name or new.spec.volume_name)


def _without_mutable_fields(
    old: core.PersistentVolumeClaim, new: core.PersistentVolumeClaim
) -> core.PersistentVolumeClaimSpec:
    """The new spec with the fields that may change set back to the old values."""
    spec = new.spec
    beta = old.metadata.annotations.get(BETA_STORAGE_CLASS_ANNOTATION)
    if old.spec.storage_class_name is None and (beta is None or spec.storage_class_name == beta):
        # A claim without a class may get one, once.
        spec = replace_fields(spec, storage_class_name=None)
    if new.status.phase != "Bound":
        return spec
    requests = dict(spec.resources.requests)
    if requests and "storage" in old.spec.resources.requests:
        requests["storage"] = old.spec.resources.requests["storage"]
    return structs.replace(
        spec,
        resources=structs.replace(spec.resources, requests=requests),
        volume_attributes_class_name=old.spec.volume_attributes_class_name,
    )


def _class_annotation(old: core.PersistentVolumeClaim, new: core.PersistentVolumeClaim) -> Causes:
    held, given = (
        old.metadata.annotations.get(BETA_STORAGE_CLASS_ANNOTATION),
        new.metadata.annotations.get(BETA_STORAGE_CLASS_ANNOTATION),
    )
    moved = held is not None and old.spec.storage_class_name is None and new.spec.storage_class_name == held
    if moved and given in (None, held):
        return
    yield from checks.immutable_field(
        f"metadata.annotations[{BETA_STORAGE_CLASS_ANNOTATION}]", given or "", held or ""
    )


def _check_shrink(old: core.PersistentVolumeClaim, new: core.PersistentVolumeClaim) -> Causes:
    """After a failed expansion a request may shrink again, but not to the current capacity or below."""
    if quantity.parse(_size(new)) >= quantity.parse(_size(old)):
        return
    if quantity.parse(_size(new)) > quantity.parse(old.status.capacity.get("storage", "0")):
        return
    yield forbidden("spec.resources.requests.storage", "field can not be less than status.capacity")


def _attributes_class(old: core.PersistentVolumeClaim, new: core.PersistentVolumeClaim) -> Causes:
    given = new.spec.volume_attributes_class_name
    unchanged = given == old.spec.volume_attributes_class_name
    if unchanged or given or old.status.current_volume_attributes_class_name is None:
        return
    word = "nil" if given is None else "empty string"
    message = f"update to {word} is forbidden when status.currentVolumeAttributesClassName is not nil"
    yield forbidden("spec.volumeAttributesClassName", message)


def _resource_key(path: str, name: str) -> Causes:
    causes = checks.qualified_name(path, name)
    native = "/" not in name or name.partition("/")[0].endswith("kubernetes.io")
    if not causes and native and name != "storage":
        return [not_supported(path, name, ("storage",))]
    return causes
