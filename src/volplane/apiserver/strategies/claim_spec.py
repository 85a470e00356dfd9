"""Validation of PersistentVolumeClaimSpec, also in the claim templates of pods and stateful sets."""

from __future__ import annotations

from volplane.api.core import PersistentVolumeClaimSpec, TypedLocalObjectReference, TypedObjectReference
from volplane.api.errors import Causes, forbidden, invalid, not_supported, required_value
from volplane.apiserver.strategies import checks

ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
VOLUME_MODES = ("Block", "Filesystem")


def validate(path: str, spec: PersistentVolumeClaimSpec) -> Causes:
    if not spec.access_modes:
        yield required_value(f"{path}.accessModes", "at least 1 access mode is required")
    yield from checks.label_selector(f"{path}.selector", spec.selector)
    yield from access_modes(f"{path}.accessModes", spec.access_modes)
    yield from _size(f"{path}.resources[storage]", spec)
    if spec.storage_class_name:
        yield from checks.subdomain(f"{path}.storageClassName", spec.storage_class_name)
    yield from checks.choice(f"{path}.volumeMode", spec.volume_mode, VOLUME_MODES)
    yield from _data_sources(path, spec)
    if spec.volume_attributes_class_name:
        yield from checks.subdomain(f"{path}.volumeAttributesClassName", spec.volume_attributes_class_name)


def access_modes(path: str, modes: tuple[str, ...]) -> Causes:
    yield from [not_supported(path, mode, ACCESS_MODES) for mode in modes if mode not in ACCESS_MODES]
    known = {mode for mode in modes if mode in ACCESS_MODES}
    if "ReadWriteOncePod" in known and len(known) > 1:
        yield forbidden(path, "may not use ReadWriteOncePod with other access modes")


def _size(path: str, spec: PersistentVolumeClaimSpec) -> Causes:
    size = spec.resources.requests.get("storage")
    if size is None:
        yield required_value(path)
        return
    yield from checks.positive_amount(path, size)


def _data_sources(path: str, spec: PersistentVolumeClaimSpec) -> Causes:
    source, ref = spec.data_source, spec.data_source_ref
    if source is not None:
        yield from _reference(f"{path}.dataSource", source)
    if ref is not None:
        yield from _reference(f"{path}.dataSourceRef", ref)
        if ref.namespace:
            yield from checks.label(f"{path}.dataSourceRef.namespace", ref.namespace)
    if source is None or ref is None:
        return
    if ref.namespace:
        message = "may not be specified when dataSourceRef.namespace is specified"
        yield invalid(path, f"{path}.dataSource", message)
    elif (source.api_group, source.kind, source.name) != (ref.api_group, ref.kind, ref.name):
        yield invalid(path, f"{path}.dataSource", "must match dataSourceRef")


def _reference(path: str, ref: TypedLocalObjectReference | TypedObjectReference) -> Causes:
    yield from [required_value(f"{path}.{name}") for name in ("name", "kind") if not getattr(ref, name)]
    if not ref.api_group and ref.kind != "PersistentVolumeClaim":
        yield invalid(path, ref.kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup")
    if ref.api_group:
        yield from checks.subdomain(f"{path}.apiGroup", ref.api_group)
