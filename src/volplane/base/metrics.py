"""Prometheus metrics in a registry of our own.

Declaring a metric twice returns the same metric: a role may run several times in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # upstream's exposition has none

registry = CollectorRegistry(auto_describe=True)
_declared: dict[str, Any] = {}

M = TypeVar("M", Counter, Gauge, Histogram)


def counter(name: str, help: str, labels: Sequence[str] = ()) -> Counter:
    return _declare(Counter, name, help, labels)


def gauge(name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
    return _declare(Gauge, name, help, labels)


def histogram(
    name: str, help: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = Histogram.DEFAULT_BUCKETS
) -> Histogram:
    return _declare(Histogram, name, help, labels, buckets=buckets)


def render() -> bytes:
    return generate_latest(registry)


def _declare(kind: type[M], name: str, help: str, labels: Sequence[str], **options: Any) -> M:
    metric = _declared.get(name)
    if metric is None:
        metric = _declared[name] = kind(name, help, tuple(labels), registry=registry, **options)
    if not isinstance(metric, kind):
        raise TypeError(f"{name} is already a {type(metric).__name__}")
    return metric
