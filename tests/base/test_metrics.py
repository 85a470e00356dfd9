"""The registry has one metric per name."""

from __future__ import annotations

from collections import Counter

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


def test_a_computed_gauge_adds_up_what_its_sources_count_when_it_is_read() -> None:
    gauge = metrics.computed_gauge("test_volumes", "Volumes.", ("plugin",))
    mine: list[str] = ["csi", "csi", "nfs"]
    other = ["csi"]

    def count(found: list[str]) -> metrics.Counts:
        return Counter((name,) for name in found)

    assert b"test_volumes{" not in metrics.render()
    with gauge.counting(lambda: list(mine), count), gauge.counting(lambda: list(other), count):
        render = metrics.prepare()
        mine.clear()  # after the copy
        text = render().decode()
        assert "# TYPE test_volumes gauge" in text
        assert 'test_volumes{plugin="csi"} 3.0' in text
        assert 'test_volumes{plugin="nfs"} 1.0' in text
        assert 'test_volumes{plugin="csi"} 1.0' in metrics.render().decode()
    assert b"test_volumes{" not in metrics.render()


def test_a_counter_keeps_its_name() -> None:
    metrics.counter("test_forced", "Forced.", ["reason"]).labels("timeout").inc()
    text = metrics.render().decode()
    assert '\ntest_forced{reason="timeout"} 1.0\n' in text
    assert "# TYPE test_forced counter" in text
    assert "test_forced_total" not in text
