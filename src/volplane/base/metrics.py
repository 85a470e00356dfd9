"""Prometheus metrics in a registry of our own.

Declaring a metric twice returns the same metric: a role may run several times in one process.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, TypeVar

import prometheus_client
from msgspec import Struct
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # upstream's exposition has none

registry = CollectorRegistry(auto_describe=True)
_declared: dict[str, Any] = {}
_sources: dict[str, list[Source]] = {}  # of computed gauges


class _Labelled(MetricWrapperBase):
    """Finds the child of labels that were used before without the library's checks and locks."""

    _metrics: dict[Any, Any]

    def labels(self, *values: object, **named: object) -> Self:
        found: Self | None = self._metrics.get(values) if self._labelnames else None
        return super().labels(*values, **named) if found is None else found


class Counter(_Labelled, prometheus_client.Counter):
    """A counter that is cheap to increment: the library checks on each call what is always so here."""

    def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:
        if amount < 0 or exemplar:
            super().inc(amount, exemplar)
        else:
            self._value.inc(amount)


class Histogram(_Labelled, prometheus_client.Histogram):
    """A histogram that finds the bucket by bisection."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        if exemplar:
            return super().observe(amount, exemplar)
        self._sum.inc(amount)
        self._buckets[bisect_left(self._upper_bounds, amount)].inc(1)


M = TypeVar("M", Counter, Gauge, Histogram)

C = TypeVar("C")
Counts = Mapping[tuple[str, ...], float]  # by the values of the labels
Source = Callable[[], Callable[[], Counts]]


class ComputedGauge(Struct, frozen=True):
    """A gauge whose values are computed when the metrics are read.

    Counts of several sources with the same labels are added up: several roles of one kind may run in this
    process. A source is a copy, taken on the event loop, and a function that counts in any thread.
    """

    name: str
    help: str
    labels: tuple[str, ...]

    @contextmanager
    def counting(self, copy: Callable[[], C], count: Callable[[C], Counts]) -> Iterator[None]:
        """Include `count(copy())` until the end of the context."""

        def source() -> Callable[[], Counts]:
            return partial(count, copy())

        _sources[self.name].append(source)
        try:
            yield
        finally:
            _sources[self.name].remove(source)

    def prepare(self) -> Callable[[], GaugeMetricFamily]:
        """Copy what is counted; what it returns may be called in any thread."""
        return partial(self._sum, [source() for source in _sources[self.name]])

    def _sum(self, counting: Sequence[Callable[[], Counts]]) -> GaugeMetricFamily:
        sums: dict[tuple[str, ...], float] = {}
        for count in counting:
            for values, number in count().items():
                sums[values] = sums.get(values, 0.0) + number
        family = GaugeMetricFamily(self.name, self.help, labels=self.labels)
        for values, total in sorted(sums.items()):
            family.add_metric(values, total)
        return family


def counter(name: str, help: str, labels: Sequence[str] = ()) -> Counter:
    return _declare(Counter, name, help, labels)


def gauge(name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
    return _declare(Gauge, name, help, labels)


def computed_gauge(name: str, help: str, labels: Sequence[str]) -> ComputedGauge:
    """Declared once, by the module that counts."""
    made = _declared[name] = ComputedGauge(name, help, tuple(labels))
    _sources[name] = []
    return made


def histogram(
    name: str, help: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = Histogram.DEFAULT_BUCKETS
) -> Histogram:
    return _declare(Histogram, name, help, labels, buckets=buckets)


def render() -> bytes:
    """All metrics as text. Call it on the event loop; `prepare` shows how to leave it."""
    return prepare()()


def prepare() -> Callable[[], bytes]:
    """Copy what computed gauges count. What it returns renders all metrics, in any thread."""
    computed = [gauge.prepare() for gauge in _declared.values() if isinstance(gauge, ComputedGauge)]
    return lambda: _generate() + generate_latest(_Families([count() for count in computed]))


def _generate() -> bytes:
    """Counters have the names that were declared: the library appends `_total` to those without it."""
    text = generate_latest(registry)
    for name, metric in list(_declared.items()):
        if isinstance(metric, Counter) and not name.endswith("_total"):
            text = re.sub(rf"\b{name}_total\b".encode(), name.encode(), text)
    return text


class _Families(Collector):
    """Metric families that have been computed already."""

    def __init__(self, families: Sequence[GaugeMetricFamily]) -> None:
        self._families = families

    def collect(self) -> Iterator[GaugeMetricFamily]:
        return iter(self._families)


def list_declared() -> list[tuple[str, str, tuple[str, ...], str]]:
    """Name, type, labels and help of every metric that the imported modules declare, by name."""
    found = []
    for name, metric in sorted(_declared.items()):
        if isinstance(metric, ComputedGauge):
            found.append((name, "gauge", metric.labels, metric.help))
        else:
            found.append((name, metric._type, metric._labelnames, metric._documentation))
    return found


def _declare(kind: type[M], name: str, help: str, labels: Sequence[str], **options: Any) -> M:
    metric = _declared.get(name)
    if metric is None:
        metric = _declared[name] = kind(name, help, tuple(labels), registry=registry, **options)
    if not isinstance(metric, kind):
        raise TypeError(f"{name} is already a {type(metric).__name__}")
    return metric
