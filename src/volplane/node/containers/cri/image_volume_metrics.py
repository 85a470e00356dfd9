"""Metrics of image volumes, with upstream's names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from volplane.base import metrics
from volplane.node.containers.base import ContainerError, Mount

_requested = metrics.counter("kubelet_image_volume_requested_total", "Number of requested image volumes.")
_mounted = metrics.counter(
    "kubelet_image_volume_mounted_succeed_total", "Number of successful image volume mounts."
)
_failed = metrics.counter(
    "kubelet_image_volume_mounted_errors_total", "Number of failed image volume mounts."
)


@contextmanager
def count_image_volumes(mounts: Sequence[Mount]) -> Iterator[None]:
    """Count those that a container is created with in this block."""
    count = sum(bool(mount.image) for mount in mounts)
    _requested.inc(count)
    try:
        yield
    except ContainerError:
        _failed.inc(count)
        raise
    _mounted.inc(count)
