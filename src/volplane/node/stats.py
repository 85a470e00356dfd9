"""Volume metrics: NodeGetVolumeStats for each mounted claim, once a minute.

Two nodes in one process share the metrics. A node removes a claim's metrics when the claim's last pod has
left, so that a volume that moved is not exported twice.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping

from volplane.base import metrics
from volplane.csi.outcome import CallError
from volplane.loops.events import EventRecorder
from volplane.node.volume_manager.manager import VolumeManager
from volplane.volumes.base import PodVolumeSpec, VolumeMetrics, VolumeOperationError

log = logging.getLogger(__name__)

JITTER = 0.1
HEALTH = "CSIVolumeHealth"

_LABELS = ("namespace", "persistentvolumeclaim")
_GAUGES = {
    field: metrics.gauge(f"kubelet_volume_stats_{name}", text, _LABELS)
    for field, name, text in (
        ("capacity", "capacity_bytes", "Capacity in bytes of the volume"),
        ("available", "available_bytes", "Number of available bytes in the volume"),
        ("used", "used_bytes", "Number of used bytes in the volume"),
        ("inodes", "inodes", "Maximum number of inodes in the volume"),
        ("inodes_free", "inodes_free", "Number of free inodes in the volume"),
        ("inodes_used", "inodes_used", "Number of used inodes in the volume"),
    )
}
_ABNORMAL = metrics.gauge(
    "kubelet_volume_stats_health_status_abnormal", "1 if the volume is unhealthy, 0 if it is healthy", _LABELS
)

Claim = tuple[str, str]  # namespace, name


class VolumeStats:
    def __init__(self, manager: VolumeManager, events: EventRecorder, gates: Mapping[str, bool]) -> None:
        self.manager, self.events = manager, events
        self._health = gates.get(HEALTH, False)
        self._exported: dict[Claim, VolumeMetrics] = {}

    async def run(self, period: float) -> None:
        """Until cancelled. A period of 0 disables it."""
        if period <= 0:
            return
        try:
            while True:
                await asyncio.sleep(period * (1 + random.uniform(0, JITTER)))
                await self.collect()
        finally:
            self._remove_others(set())

    async def collect(self) -> None:
        seen: set[Claim] = set()
        for spec in self.manager.mounted_specs():
            if spec.claim is not None:
                claim = (spec.claim.namespace, spec.claim.name)
                seen.add(claim)
                await self._collect_volume(claim, spec)
        self._remove_others(seen)

    async def _collect_volume(self, claim: Claim, spec: PodVolumeSpec) -> None:
        plugin = self.manager.plugins[spec.plugin]
        try:
            usage = await plugin.read_metrics(spec)
        except (VolumeOperationError, CallError, OSError) as error:
            log.warning("no metrics of volume %s: %s", spec.name, error)
            return
        if usage is not None:
            self._export(claim, spec, usage)

    def _export(self, claim: Claim, spec: PodVolumeSpec, usage: VolumeMetrics) -> None:
        self._exported[claim] = usage
        for field, gauge in _GAUGES.items():
            value = getattr(usage, field)
            if value is not None:
                gauge.labels(*claim).set(value)
        if self._health and usage.abnormal is not None:
            _ABNORMAL.labels(*claim).set(float(usage.abnormal))
            if usage.abnormal:
                text = f"Volume {spec.source.name}: {usage.message}"
                self.events.warning(spec.pod, "VolumeConditionAbnormal", text)

    def _remove_others(self, kept: set[Claim]) -> None:
        for claim in self._exported.keys() - kept:
            del self._exported[claim]
            for gauge in (*_GAUGES.values(), _ABNORMAL):
                if claim in gauge._metrics:
                    gauge.remove(*claim)
