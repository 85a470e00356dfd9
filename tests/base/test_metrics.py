"""The registry has one metric per name."""

from __future__ import annotations

import pytest

from volplane.base import metrics


def test_a_metric_declared_twice_is_one_metric() -> None:
    first = metrics.counter("test_writes_total", "Writes.", ["verb"])
    first.labels("create").inc()
    metrics.counter("test_writes_total", "Writes.", ["verb"]).labels("create").inc()
    assert b'test_writes_total{verb="create"} 2.0' in metrics.render()


def test_a_name_keeps_its_kind() -> None:
    metrics.gauge("test_depth", "Depth.")
    with pytest.raises(TypeError, match="test_depth is already a Gauge"):
        metrics.counter("test_depth", "Depth.")


def test_histograms_show_buckets_and_no_creation_times() -> None:
    metrics.histogram("test_seconds", "Seconds.", buckets=(0.1, 1)).observe(0.5)
    text = metrics.render().decode()
    assert 'test_seconds_bucket{le="1.0"} 1.0' in text
    assert "_created" not in text
