"""Metrics of operations on volumes, with upstream's names, labels and buckets.

The attach/detach controller and the kubelet share them: `operation_name` tells what was done.
"""

from __future__ import annotations

from volplane.base import metrics

SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)

_operations = metrics.histogram(
    "storage_operation_duration_seconds",
    "Storage operation duration",
    ("volume_plugin", "operation_name", "status", "migrated"),
    buckets=SECONDS,
)
_totals = metrics.histogram(
    "volume_operation_total_seconds",
    "Storage operation end to end duration in seconds",
    ("plugin_name", "operation_name"),
    buckets=SECONDS,
)
_calls = metrics.histogram(
    "csi_operations_seconds",
    "Container Storage Interface operation duration with gRPC error code status total",
    ("driver_name", "method_name", "grpc_status_code", "migrated"),
    buckets=SECONDS,
)


def observe_operation(plugin: str, operation: str, seconds: float, *, failed: bool) -> None:
    """One attempt of an operation: attach, detach, mount, unmount, expand."""
    status = "fail-unknown" if failed else "success"
    _operations.labels(plugin, operation, status, "false").observe(seconds)


def observe_total(plugin: str, operation: str, seconds: float) -> None:
    """From the request to the success, with all attempts and waits."""
    _totals.labels(plugin, operation).observe(seconds)


def observe_call(driver: str, method: str, code: str, seconds: float) -> None:
    """One call from the kubelet to a CSI driver. `method` is the path, such as /csi.v1.Node/NodeGetInfo."""
    _calls.labels(driver, method, code, "false").observe(seconds)
