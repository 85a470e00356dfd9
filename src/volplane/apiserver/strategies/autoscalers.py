"""autoscaling/v1: the autoscalers of v2, with CPU utilization as the only metric.

Autoscalers are stored once, in the form of v2. What v1 has no field for is in annotations with upstream's
names, so that an object that is read and written through v1 keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from volplane.api import codec
from volplane.api.kinds import Kind
from volplane.apiserver.object_access import OPENING, StructAccess
from volplane.apiserver.strategy import Strategy
from volplane.store import StoreRecord

Plain = dict[str, Any]

_PREFIX = "autoscaling.alpha.kubernetes.io/"
# Annotation → where v2 has it
_ANNOTATED = {
    f"{_PREFIX}metrics": ("spec", "metrics"),
    f"{_PREFIX}behavior": ("spec", "behavior"),
    f"{_PREFIX}conditions": ("status", "conditions"),
    f"{_PREFIX}current-metrics": ("status", "currentMetrics"),
}
_encoder = msgspec.json.Encoder()


class AutoscalerAccess(StructAccess):
    """Converts between the stored form, which is that of v2, and v1."""

    def load(self, value: bytes, revision: int) -> Any:
        return codec.decode(self.type, self.to_wire(value, revision))

    def encode_stored(self, obj: Any) -> bytes:
        return codec.encode_stored_custom(to_v2(codec.to_dict(obj)))

    def to_wire(self, value: bytes, revision: int) -> bytes:
        made = to_v1(msgspec.json.decode(OPENING + value))
        return super().to_wire(_encoder.encode(made)[len(OPENING) :], revision)

    def to_list_items(self, records: Sequence[StoreRecord]) -> list[bytes]:
        return [self.without_head(self.to_wire(record.value, record.revision)) for record in records]


class AutoscalerStrategy(Strategy[Any]):
    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self.access = AutoscalerAccess(kind)


def to_v1(data: Plain) -> Plain:
    spec, status = _to_v1_spec(data.get("spec") or {}), data.get("status")
    made = {"metadata": dict(data["metadata"]), "spec": spec}
    if status is not None:
        made["status"] = _to_v1_status(status)
    for annotation, (part, name) in _ANNOTATED.items():
        if value := made.get(part, {}).pop(name, None):
            annotations = made["metadata"].get("annotations", {})
            made["metadata"]["annotations"] = {**annotations, annotation: _encoder.encode(value).decode()}
    return made


def _to_v1_spec(spec: Plain) -> Plain:
    cpu, others = _split_metrics(spec.get("metrics", ()), "target")
    return {**spec, "metrics": others, **({"targetCPUUtilizationPercentage": cpu} if cpu else {})}


def _to_v1_status(status: Plain) -> Plain:
    cpu, others = _split_metrics(status.get("currentMetrics", ()), "current")
    return {**status, "currentMetrics": others, **({"currentCPUUtilizationPercentage": cpu} if cpu else {})}


def _split_metrics(metrics: Sequence[Plain], value: str) -> tuple[int | None, list[Plain]]:
    """The CPU utilization, and all other metrics."""
    cpu = [m["resource"][value]["averageUtilization"] for m in metrics if _is_cpu(m, value)]
    return cpu[0] if cpu else None, [m for m in metrics if not _is_cpu(m, value)]


def to_v2(data: Plain) -> Plain:
    metadata, annotations = dict(data["metadata"]), dict(data["metadata"].get("annotations", {}))
    made = {**data, "metadata": metadata, "spec": dict(data.get("spec") or {})}
    if "status" in data:
        made["status"] = dict(data["status"] or {})
    for annotation, (part, name) in _ANNOTATED.items():
        if annotation in annotations:
            made.setdefault(part, {})[name] = msgspec.json.decode(annotations.pop(annotation))
    if annotations or "annotations" in metadata:
        metadata["annotations"] = annotations
    target = made["spec"].pop("targetCPUUtilizationPercentage", None)
    if target is not None:
        wanted = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": target}}
        _add_metric(made["spec"], "metrics", wanted)
    current = made.get("status", {}).pop("currentCPUUtilizationPercentage", None)
    if current is not None:
        _add_metric(
            made["status"], "currentMetrics", {"name": "cpu", "current": {"averageUtilization": current}}
        )
    return made


def _add_metric(part: Plain, name: str, resource: Plain) -> None:
    part[name] = [{"type": "Resource", "resource": resource}, *part.get(name, ())]


def _is_cpu(metric: Plain, value: str) -> bool:
    source = metric.get("resource") or {}
    return source.get("name") == "cpu" and "averageUtilization" in source.get(value, {})
