"""Claims, volumes, classes, attachments and what drivers say of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import structs

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    StorageClass,
    VolumeAttachment,
    VolumeAttributesClass,
)
from volplane.apiserver.strategies.persistentvolumeclaims import BETA_CLASS, class_of, is_default
from volplane.apiserver.tables.columns import NONE, UNSET, TableColumn, TablePrinter, age_of, columns

_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def modes(given: Iterable[str]) -> str:
    held = set(given)
    return ",".join(short for mode, short in _MODES.items() if mode in held)


def _phase(obj: Any) -> str:
    return "Terminating" if obj.is_deleting else obj.status.phase


def _or_unset(text: str | None) -> str:
    return UNSET if text is None else text


def _claim(claim: PersistentVolumeClaim, now: datetime) -> list[Any]:
    bound = bool(claim.spec.volume_name)
    return [
        claim.name,
        _phase(claim),
        claim.spec.volume_name,
        claim.status.capacity.get("storage", "0") if bound else "",
        modes(claim.status.access_modes) if bound else "",
        class_of(claim),
        _or_unset(claim.spec.volume_attributes_class_name),
        age_of(claim, now),
        _or_unset(claim.spec.volume_mode),
    ]


def _volume(volume: PersistentVolume, now: datetime) -> list[Any]:
    spec, ref = volume.spec, volume.spec.claim_ref
    return [
        volume.name,
        spec.capacity.get("storage", "0"),
        modes(spec.access_modes),
        spec.persistent_volume_reclaim_policy,
        _phase(volume),
        f"{ref.namespace}/{ref.name}" if ref is not None else "",
        volume.metadata.annotations.get(BETA_CLASS, spec.storage_class_name),
        _or_unset(spec.volume_attributes_class_name),
        volume.status.reason,
        age_of(volume, now),
        _or_unset(spec.volume_mode),
    ]


def _class(one: StorageClass, now: datetime) -> list[Any]:
    return [
        f"{one.name} (default)" if is_default(one) else one.name,
        one.provisioner,
        one.reclaim_policy or "Delete",
        one.volume_binding_mode or "Immediate",
        bool(one.allow_volume_expansion),
        age_of(one, now),
    ]


def _attachment(attachment: VolumeAttachment, now: datetime) -> list[Any]:
    spec = attachment.spec
    return [
        attachment.name,
        spec.attacher,
        spec.source.persistent_volume_name or "",
        spec.node_name,
        attachment.status.attached,
        age_of(attachment, now),
    ]


def _driver(driver: CSIDriver, now: datetime) -> list[Any]:
    spec = driver.spec
    audiences = ",".join(request.audience for request in spec.token_requests)
    return [
        driver.name,
        spec.attach_required is not False,
        bool(spec.pod_info_on_mount),
        bool(spec.storage_capacity),
        audiences if spec.token_requests else UNSET,
        bool(spec.requires_republish),
        ",".join(spec.volume_lifecycle_modes) or NONE,
        age_of(driver, now),
    ]


def _node(node: CSINode, now: datetime) -> list[Any]:
    return [node.name, len(node.spec.drivers), age_of(node, now)]


def _capacity(capacity: CSIStorageCapacity, now: datetime) -> list[Any]:
    return [capacity.name, capacity.storage_class_name, _or_unset(capacity.capacity)]


def _attributes(one: VolumeAttributesClass, now: datetime) -> list[Any]:
    return [one.name, one.driver_name, age_of(one, now)]


def _attachment_columns() -> tuple[TableColumn, ...]:
    plain = columns("Name", "Attacher", "PV", "Node", "Attached#boolean", "Age")
    return tuple(structs.replace(c, format="name") if c.name == "Attacher" else c for c in plain)


PRINTERS: Mapping[str, TablePrinter] = {
    "persistentvolumeclaims": TablePrinter(
        columns(
            "Name",
            "Status",
            "Volume",
            "Capacity",
            "Access Modes",
            "StorageClass",
            "VolumeAttributesClass",
            "Age",
            "VolumeMode*",
        ),
        _claim,
    ),
    "persistentvolumes": TablePrinter(
        columns(
            "Name",
            "Capacity",
            "Access Modes",
            "Reclaim Policy",
            "Status",
            "Claim",
            "StorageClass",
            "VolumeAttributesClass",
            "Reason",
            "Age",
            "VolumeMode*",
        ),
        _volume,
    ),
    "storageclasses.storage.k8s.io": TablePrinter(
        columns("Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion", "Age"),
        _class,
    ),
    "volumeattachments.storage.k8s.io": TablePrinter(_attachment_columns(), _attachment),
    "csidrivers.storage.k8s.io": TablePrinter(
        columns(
            "Name",
            "AttachRequired#boolean",
            "PodInfoOnMount#boolean",
            "StorageCapacity#boolean",
            "TokenRequests",
            "RequiresRepublish#boolean",
            "Modes",
            "Age",
        ),
        _driver,
    ),
    "csinodes.storage.k8s.io": TablePrinter(columns("Name", "Drivers#integer", "Age"), _node),
    "csistoragecapacities.storage.k8s.io": TablePrinter(
        columns("Name", "StorageClassName", "Capacity"), _capacity
    ),
    "volumeattributesclasses.storage.k8s.io": TablePrinter(columns("Name", "DriverName", "Age"), _attributes),
}
