"""The provisioner's metrics, with upstream's names."""

from __future__ import annotations

from volplane.base import metrics
from volplane.sidecars.provisioner.provision_request import ProvisionRequest

PROVISIONED = metrics.counter(
    "controller_persistentvolumeclaim_provision_total",
    "Total number of persistent volumes provisioned successfully, by storage class and source.",
    ("class", "source"),
)
PROVISION_FAILED = metrics.counter(
    "controller_persistentvolumeclaim_provision_failed_total",
    "Total number of attempts to provision a persistent volume that failed, by storage class and source.",
    ("class", "source"),
)
PROVISION_SECONDS = metrics.histogram(
    "controller_persistentvolumeclaim_provision_duration_seconds",
    "Seconds that provisioning a persistent volume took, by storage class and source.",
    ("class", "source"),
)
DELETED = metrics.counter(
    "controller_persistentvolume_delete_total",
    "Total number of persistent volumes deleted successfully, by storage class.",
    ("class",),
)
DELETE_FAILED = metrics.counter(
    "controller_persistentvolume_delete_failed_total",
    "Total number of attempts to delete a persistent volume that failed, by storage class.",
    ("class",),
)
DELETE_SECONDS = metrics.histogram(
    "controller_persistentvolume_delete_duration_seconds",
    "Seconds that deleting a persistent volume took, by storage class.",
    ("class",),
)


def _source(provision_request: ProvisionRequest) -> str:
    if provision_request.content is None:
        return ""
    return "VolumeSnapshot" if provision_request.content.snapshot else "PersistentVolumeClaim"


def count_provisioned(provision_request: ProvisionRequest, seconds: float) -> None:
    PROVISIONED.labels(provision_request.storage_class, _source(provision_request)).inc()
    PROVISION_SECONDS.labels(provision_request.storage_class, _source(provision_request)).observe(seconds)


def count_provision_failure(provision_request: ProvisionRequest) -> None:
    PROVISION_FAILED.labels(provision_request.storage_class, _source(provision_request)).inc()


def count_deleted(storage_class: str, seconds: float) -> None:
    DELETED.labels(storage_class).inc()
    DELETE_SECONDS.labels(storage_class).observe(seconds)


def count_delete_failure(storage_class: str) -> None:
    DELETE_FAILED.labels(storage_class).inc()
