"""PersistentVolumes: exactly one source, which is immutable; claimRef, size and policy may change."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import structs

from volplane.api import core
from volplane.api.errors import Causes, forbidden, invalid, not_supported, required_value
from volplane.api.finalizers import PV_PROTECTION_FINALIZER
from volplane.api.labels import (
    ARCH_LABEL,
    BETA_ARCH_LABEL,
    BETA_INSTANCE_TYPE_LABEL,
    BETA_OS_LABEL,
    BETA_REGION_LABEL,
    BETA_ZONE_LABEL,
    INSTANCE_TYPE_LABEL,
    OS_LABEL,
    REGION_LABEL,
    ZONE_LABEL,
)
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.claim_spec import VOLUME_MODES, access_modes
from volplane.apiserver.strategies.finalizers import add_finalizer
from volplane.apiserver.strategies.pods import volumes as sources
from volplane.apiserver.strategy import ApiCall, Strategy
from volplane.apiserver.struct_edit import replace_fields
from volplane.base import clock

POLICIES = ("Delete", "Recycle", "Retain")
INLINE = "may not be specified in the context of inline volumes"

_OTHERS = {
    "capacity", "access_modes", "claim_ref", "persistent_volume_reclaim_policy", "storage_class_name",
    "mount_options", "volume_mode", "node_affinity", "volume_attributes_class_name",
}  # fmt: skip
# If several sources are set, those after the first in this order are forbidden.
_SOURCES = {"host_path": "hostPath"} | {
    f.name: f.encode_name for f in structs.fields(core.PersistentVolumeSpec) if f.name not in _OTHERS
}


class PersistentVolumeStrategy(Strategy[core.PersistentVolume]):
    async def admit_create(self, call: ApiCall, obj: core.PersistentVolume) -> core.PersistentVolume:
        return add_finalizer(obj, PV_PROTECTION_FINALIZER)

    def prepare_create(self, call: ApiCall, obj: core.PersistentVolume) -> core.PersistentVolume:
        status = core.PersistentVolumeStatus(
            phase="Pending", last_phase_transition_time=clock.stamp(call.now)
        )
        return structs.replace(obj, status=status)

    def prepare_status(
        self, call: ApiCall, old: core.PersistentVolume, new: core.PersistentVolume
    ) -> core.PersistentVolume:
        made = super().prepare_status(call, old, new)
        if made.status.phase == old.status.phase:
            return made
        if made.status.last_phase_transition_time not in (None, old.status.last_phase_transition_time):
            return made
        stamped = structs.replace(made.status, last_phase_transition_time=clock.stamp(call.now))
        return structs.replace(made, status=stamped)

    def validate_create(self, call: ApiCall, obj: core.PersistentVolume) -> Causes:
        return volume_spec("spec", obj.spec)

    def validate_update(
        self, call: ApiCall, old: core.PersistentVolume, new: core.PersistentVolume
    ) -> Causes:
        if new.spec is old.spec:
            return
        yield from volume_spec("spec", new.spec)
        before, after = _source_of(old.spec), _source_of(_without_first_secret(old.spec, new.spec))
        if before != after:
            message = "spec.persistentvolumesource is immutable after creation"
            shown = checks.difference(before, after)
            yield forbidden("spec.persistentvolumesource", f"{message}\n{shown}")
        yield from checks.immutable_field("volumeMode", new.spec.volume_mode, old.spec.volume_mode)
        yield from _affinity_change(old.spec.node_affinity, new.spec.node_affinity)
        if (
            old.spec.volume_attributes_class_name is not None
            and new.spec.volume_attributes_class_name is None
        ):
            yield forbidden("spec.volumeAttributesClassName", "update from non-nil value to nil is forbidden")


def _source_of(spec: core.PersistentVolumeSpec) -> dict[str, Any]:
    return {wire: getattr(spec, name) for name, wire in _SOURCES.items() if getattr(spec, name) is not None}


def _without_first_secret(
    old: core.PersistentVolumeSpec, new: core.PersistentVolumeSpec
) -> core.PersistentVolumeSpec:
    """The secret for expansion may be added later."""
    if old.csi is None or new.csi is None or old.csi.controller_expand_secret_ref is not None:
        return new
    return replace_fields(new, csi=replace_fields(new.csi, controller_expand_secret_ref=None))


_GA_LABELS = {
    BETA_ZONE_LABEL: ZONE_LABEL,
    BETA_REGION_LABEL: REGION_LABEL,
    BETA_OS_LABEL: OS_LABEL,
    BETA_ARCH_LABEL: ARCH_LABEL,
    BETA_INSTANCE_TYPE_LABEL: INSTANCE_TYPE_LABEL,
}


def _affinity_change(old: core.VolumeNodeAffinity | None, new: core.VolumeNodeAffinity | None) -> Causes:
    if old is None or old == new or _with_ga_labels(old) == new:
        return
    message = f"{checks.IMMUTABLE}, except for updating from beta label to GA"
    yield invalid("nodeAffinity", checks.to_plain(new), message)


def _with_ga_labels(affinity: core.VolumeNodeAffinity) -> core.VolumeNodeAffinity:
    if affinity.required is None:
        return affinity
    terms = tuple(
        structs.replace(
            term,
            match_expressions=tuple(
                structs.replace(need, key=_GA_LABELS.get(need.key, need.key))
                for need in term.match_expressions
            ),
        )
        for term in affinity.required.node_selector_terms
    )
    return structs.replace(affinity, required=structs.replace(affinity.required, node_selector_terms=terms))


# Spec


def volume_spec(path: str, spec: core.PersistentVolumeSpec) -> Causes:
    yield from checks.present(f"{path}.accessModes", spec.access_modes)
    yield from access_modes(f"{path}.accessModes", spec.access_modes)
    yield from _capacity(f"{path}.capacity", spec)
    policy = spec.persistent_volume_reclaim_policy
    yield from checks.choice(f"{path}.persistentVolumeReclaimPolicy", policy or None, POLICIES)
    yield from _affinity(f"{path}.nodeAffinity", spec)
    yield from _source(path, spec)
    if spec.host_path is not None and policy == "Recycle" and posixpath.normpath(spec.host_path.path) == "/":
        message = "may not be 'recycle' for a hostPath mount of '/'"
        yield forbidden(f"{path}.persistentVolumeReclaimPolicy", message)
    if spec.storage_class_name:
        yield from checks.subdomain(f"{path}.storageClassName", spec.storage_class_name)
    yield from checks.choice(f"{path}.volumeMode", spec.volume_mode, VOLUME_MODES)
    yield from _attributes_class(path, spec)


def inline_spec(path: str, spec: core.PersistentVolumeSpec) -> Causes:
    """The inline volume of a VolumeAttachment, which has no PersistentVolume."""
    given = {
        "claimRef": spec.claim_ref,
        "capacity": spec.capacity,
        "nodeAffinity": spec.node_affinity,
        "storageClassName": spec.storage_class_name,
    }
    yield from [forbidden(f"{path}.{name}", INLINE) for name, value in given.items() if value]
    if spec.csi is None:
        yield required_value(f"{path}.csi", "has to be specified in the context of inline volumes")
    yield from checks.present(f"{path}.accessModes", spec.access_modes)
    yield from access_modes(f"{path}.accessModes", spec.access_modes)
    if spec.persistent_volume_reclaim_policy not in ("", "Retain"):
        message = "may only be Retain in the context of inline volumes"
        yield forbidden(f"{path}.persistentVolumeReclaimPolicy", message)
    if spec.volume_mode not in (None, "Filesystem"):
        message = "may not specify volumeMode other than Filesystem in the context of inline volumes"
        yield forbidden(f"{path}.volumeMode", message)
    yield from _source(path, spec)


def _capacity(path: str, spec: core.PersistentVolumeSpec) -> Causes:
    yield from checks.present(path, spec.capacity)
    if set(spec.capacity) != {"storage"}:
        yield not_supported(path, dict(spec.capacity), ("storage",))
    for name, amount in spec.capacity.items():
        yield from checks.positive_amount(f"{path}[{name}]", amount)


def _affinity(path: str, spec: core.PersistentVolumeSpec) -> Causes:
    if spec.node_affinity is None:
        return
    if spec.node_affinity.required is None:
        yield required_value(f"{path}.required", "must specify required node constraints")
        return
    yield from checks.node_selector(f"{path}.required", spec.node_affinity.required)


def _source(path: str, spec: core.PersistentVolumeSpec) -> Causes:
    given = [name for name in _SOURCES if getattr(spec, name) is not None]
    if not given:
        yield required_value(path, "must specify a volume type")
        return
    check = _CHECKS.get(given[0])
    if check:
        yield from check(f"{path}.{_SOURCES[given[0]]}", getattr(spec, given[0]))
    if spec.local is not None and spec.node_affinity is None:
        yield required_value(f"{path}.nodeAffinity", "Local volume requires node affinity")
    yield from checks.at_most_one(path, [_SOURCES[name] for name in given], "volume type")


def _csi(path: str, source: core.CSIPersistentVolumeSource) -> Causes:
    yield from checks.driver_name(f"{path}.driver", source.driver)
    yield from checks.present(f"{path}.volumeHandle", source.volume_handle)
    secrets = {
        "controllerPublishSecretRef": source.controller_publish_secret_ref,
        "controllerExpandSecretRef": source.controller_expand_secret_ref,
        "nodePublishSecretRef": source.node_publish_secret_ref,
        "nodeExpandSecretRef": source.node_expand_secret_ref,
    }
    for name, ref in secrets.items():
        yield from _secret(f"{path}.{name}", ref)


def _secret(path: str, ref: core.SecretReference | None) -> Causes:
    if ref is None:
        return
    if ref.name:
        yield from checks.subdomain(f"{path}.name", ref.name)
    else:
        yield required_value(f"{path}.name")
    if not ref.namespace:
        yield required_value(f"{path}.namespace")
        return
    yield from checks.label(f"{path}.namespace", ref.namespace)


def _local(path: str, source: Any) -> Causes:
    return (
        checks.no_backsteps(f"{path}.path", source.path) if source.path else [required_value(f"{path}.path")]
    )


_CHECKS: Mapping[str, Callable[[str, Any], Causes]] = {
    "csi": _csi,
    "host_path": sources.host_path,
    "local": _local,
    "nfs": sources.nfs,
    "flex_volume": sources.flex,
}


def _attributes_class(path: str, spec: core.PersistentVolumeSpec) -> Causes:
    name = spec.volume_attributes_class_name
    if name is None:
        return
    here = f"{path}.volumeAttributesClassName"
    if name:
        yield from checks.subdomain(here, name)
    else:
        yield required_value(here, "an empty string is disallowed")
    if spec.csi is None:
        yield required_value(f"{path}.csi", "has to be specified when using volumeAttributesClassName")
