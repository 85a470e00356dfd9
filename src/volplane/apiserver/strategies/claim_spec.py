"""What a claim's spec must say; also for the claims that pods and stateful sets carry as templates."""

from __future__ import annotations

from volplane.api.core import PersistentVolumeClaimSpec, TypedLocalObjectReference, TypedObjectReference
from volplane.api.errors import Cause, forbidden, invalid, not_supported, required_value
from volplane.apiserver.strategies import checks

ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
VOLUME_MODES = ("Block", "Filesystem")


def validate(path: str, spec: PersistentVolumeClaimSpec) -> list[Cause]:
    causes = []
    if not spec.access_modes:
        causes.append(required_value(f"{path}.accessModes", "at least 1 access mode is required"))
    causes += checks.label_selector(f"{path}.selector", spec.selector)
    causes += access_modes(f"{path}.accessModes", spec.access_modes)
    causes += _size(f"{path}.resources[storage]", spec)
    if spec.storage_class_name:
        causes += checks.subdomain(f"{path}.storageClassName", spec.storage_class_name)
    causes += checks.choice(f"{path}.volumeMode", spec.volume_mode, VOLUME_MODES)
    causes += _data_sources(path, spec)
    if spec.volume_attributes_class_name:
        causes += checks.subdomain(f"{path}.volumeAttributesClassName", spec.volume_attributes_class_name)
    return causes


def access_modes(path: str, modes: tuple[str, ...]) -> list[Cause]:
    causes = [not_supported(path, mode, ACCESS_MODES) for mode in modes if mode not in ACCESS_MODES]
    known = {mode for mode in modes if mode in ACCESS_MODES}
    if "ReadWriteOncePod" in known and len(known) > 1:
        causes.append(forbidden(path, "may not use ReadWriteOncePod with other access modes"))
    return causes


def _size(path: str, spec: PersistentVolumeClaimSpec) -> list[Cause]:
    size = spec.resources.requests.get("storage")
    if size is None:
        return [required_value(path)]
    return checks.positive_amount(path, size)


def _data_sources(path: str, spec: PersistentVolumeClaimSpec) -> list[Cause]:
    source, ref = spec.data_source, spec.data_source_ref
    causes = []
    if source is not None:
        causes += _reference(f"{path}.dataSource", source)
    if ref is not None:
        causes += _reference(f"{path}.dataSourceRef", ref)
        if ref.namespace:
            causes += checks.label(f"{path}.dataSourceRef.namespace", ref.namespace)
    if source is None or ref is None:
        return causes
    if ref.namespace:
        message = "may not be specified when dataSourceRef.namespace is specified"
        causes.append(invalid(path, f"{path}.dataSource", message))
    elif (source.api_group, source.kind, source.name) != (ref.api_group, ref.kind, ref.name):
        causes.append(invalid(path, f"{path}.dataSource", "must match dataSourceRef"))
    return causes


def _reference(path: str, ref: TypedLocalObjectReference | TypedObjectReference) -> list[Cause]:
    causes = [required_value(f"{path}.{name}") for name in ("name", "kind") if not getattr(ref, name)]
    if not ref.api_group and ref.kind != "PersistentVolumeClaim":
        message = "must be 'PersistentVolumeClaim' when referencing the default apiGroup"
        causes.append(invalid(path, ref.kind, message))
    if ref.api_group:
        causes += checks.subdomain(f"{path}.apiGroup", ref.api_group)
    return causes
