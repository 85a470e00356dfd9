"""Metrics: how many volumes and claims are bound, how many claims got the default class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.errors import APIError
from volplane.base import metrics
from volplane.base.metrics import Counts
from volplane.rules.binding import claim_class
from volplane.rules.plugin_names import plugin_of_volume

_CLAIM_LABELS = ("namespace", "storage_class", "volume_attributes_class")

total_volumes = metrics.computed_gauge(
    "pv_collector_total_pv_count",
    "Gauge measuring total number of persistent volumes",
    ("plugin_name", "volume_mode"),
)
bound_volumes = metrics.computed_gauge(
    "pv_collector_bound_pv_count",
    "Gauge measuring number of persistent volume currently bound",
    ("storage_class",),
)
unbound_volumes = metrics.computed_gauge(
    "pv_collector_unbound_pv_count",
    "Gauge measuring number of persistent volume currently unbound",
    ("storage_class",),
)
bound_claims = metrics.computed_gauge(
    "pv_collector_bound_pvc_count",
    "Gauge measuring number of persistent volume claim currently bound",
    _CLAIM_LABELS,
)
unbound_claims = metrics.computed_gauge(
    "pv_collector_unbound_pvc_count",
    "Gauge measuring number of persistent volume claim currently unbound",
    _CLAIM_LABELS,
)


_default_classes = metrics.counter(
    "retroactive_storageclass_total",
    "Total number of retroactive StorageClass assignments to persistent volume claim",
)
_failed_default_classes = metrics.counter(
    "retroactive_storageclass_errors_total",
    "Total number of failed retroactive StorageClass assignments to persistent volume claim",
)


@contextmanager
def counting_default_class() -> Iterator[None]:
    """Count the assignment of the default class to a claim that was created without one."""
    _default_classes.inc()
    try:
        yield
    except APIError:
        _failed_default_classes.inc()
        raise


def count_volumes(volumes: Sequence[PersistentVolume]) -> Counts:
    return Counter((plugin_of_volume(volume), volume.spec.volume_mode or "Filesystem") for volume in volumes)


def count_bound_volumes(volumes: Sequence[PersistentVolume]) -> Counts:
    return Counter((volume.spec.storage_class_name,) for volume in volumes if _is_bound(volume))


def count_unbound_volumes(volumes: Sequence[PersistentVolume]) -> Counts:
    return Counter((volume.spec.storage_class_name,) for volume in volumes if not _is_bound(volume))


def count_bound_claims(claims: Sequence[PersistentVolumeClaim]) -> Counts:
    return Counter(_claim_labels(claim) for claim in claims if _is_bound(claim))


def count_unbound_claims(claims: Sequence[PersistentVolumeClaim]) -> Counts:
    return Counter(_claim_labels(claim) for claim in claims if not _is_bound(claim))


def _is_bound(target: PersistentVolume | PersistentVolumeClaim) -> bool:
    return target.status.phase == "Bound"


def _claim_labels(claim: PersistentVolumeClaim) -> tuple[str, ...]:
    return claim.namespace, claim_class(claim) or "", claim.spec.volume_attributes_class_name or ""
