"""What a kubelet's metrics tell about a volume: how long calls to its driver take, and how full it is. Pure.

Metrics are sums of all volumes of the driver since the kubelet started, so they show what is usual on a
node, not what happened to this volume. How full a volume is, they tell of each claim.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from volplane.explain.journey.model import CallMeasurement, VolumeUsage

CALLS = "csi_operations_seconds"
CAPACITY, USED = "kubelet_volume_stats_capacity_bytes", "kubelet_volume_stats_used_bytes"

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?[ \t]+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

Sample = tuple[str, Mapping[str, str], float]  # name, labels, value


def parse_samples(text: str) -> Iterator[Sample]:
    """The samples of a page in Prometheus' text format; lines that are none are left out."""
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found is None:  # a comment
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        labels = {name: _unescape(text) for name, text in _LABEL.findall(found[2] or "")}
        yield found[1], labels, value


def _unescape(text: str) -> str:
    return re.sub(r"\\.", lambda escape: _ESCAPED.get(escape[0], escape[0]), text)


def measure_calls(text: str, node: str, driver: str) -> tuple[CallMeasurement, ...]:
    """The calls of a node's kubelet to a driver, by method."""
    counts: dict[str, float] = {}
    failed: dict[str, float] = {}
    sums: dict[str, float] = {}
    for name, labels, value in parse_samples(text):
        if labels.get("driver_name") != driver or not name.startswith(CALLS):
            continue
        method = labels.get("method_name", "").rpartition("/")[2]
        if name == f"{CALLS}_count":
            counts[method] = counts.get(method, 0.0) + value
            if labels.get("grpc_status_code") != "OK":
                failed[method] = failed.get(method, 0.0) + value
        elif name == f"{CALLS}_sum":
            sums[method] = sums.get(method, 0.0) + value
    return tuple(
        CallMeasurement(node, method, int(count), sums.get(method, 0.0) / count, int(failed.get(method, 0.0)))
        for method, count in counts.items()
        if count
    )


def measure_usage(text: str, node: str, claim: str) -> VolumeUsage | None:
    """How full the volume of a claim (namespace/name) is; None if the node has not mounted it."""
    found = {
        name: value
        for name, labels, value in parse_samples(text)
        if name in (CAPACITY, USED)
        and f"{labels.get('namespace')}/{labels.get('persistentvolumeclaim')}" == claim
    }
    if CAPACITY not in found:
        return None
    return VolumeUsage(node, int(found[CAPACITY]), int(found.get(USED, 0.0)))
