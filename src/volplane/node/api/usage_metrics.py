"""The node's usage as Prometheus metrics, under the names of the kubelet and of cAdvisor. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from volplane.node.usage import ContainerSample, NodeSample

Labels = Mapping[str, str]
Values = Iterable[tuple[Labels, float]]


def render_resource_metrics(sample: NodeSample) -> bytes:
    """`/metrics/resource`, which metrics-server reads."""
    at = round(sample.time * 1000)
    each = [(_labels(c), c) for c in sample.containers]
    pods = list(_sum_pods(sample.containers))
    lines = [
        *_metric("container_cpu_usage_seconds_total", "counter", [(n, c.cpu) for n, c in each], at),
        *_metric("container_memory_working_set_bytes", "gauge", [(n, c.memory) for n, c in each], at),
        *_metric("container_start_time_seconds", "gauge", [(n, c.started) for n, c in each], at),
        *_metric("node_cpu_usage_seconds_total", "counter", [({}, sample.cpu)], at),
        *_metric("node_memory_working_set_bytes", "gauge", [({}, sample.memory)], at),
        *_metric("pod_cpu_usage_seconds_total", "counter", [(n, cpu) for n, cpu, _ in pods], at),
        *_metric("pod_memory_working_set_bytes", "gauge", [(n, memory) for n, _, memory in pods], at),
        *_metric("resource_scrape_error", "gauge", [({}, 0)]),
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def render_container_metrics(sample: NodeSample) -> bytes:
    """`/metrics/cadvisor`, as far as the node knows it."""
    at = round(sample.time * 1000)
    each = [(_labels(c), c) for c in sample.containers]
    lines = [
        *_metric("container_cpu_usage_seconds_total", "counter", [(n, c.cpu) for n, c in each], at),
        *_metric("container_memory_rss", "gauge", [(n, c.memory) for n, c in each], at),
        *_metric("container_memory_usage_bytes", "gauge", [(n, c.memory) for n, c in each], at),
        *_metric("container_memory_working_set_bytes", "gauge", [(n, c.memory) for n, c in each], at),
        *_metric("container_start_time_seconds", "gauge", [(n, c.started) for n, c in each], at),
        *_metric("machine_cpu_cores", "gauge", [({}, sample.processors)], at),
        *_metric("machine_memory_bytes", "gauge", [({}, sample.capacity)], at),
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _labels(container: ContainerSample) -> Labels:
    return {"container": container.container, "namespace": container.namespace, "pod": container.pod}


def _sum_pods(containers: Iterable[ContainerSample]) -> Iterator[tuple[Labels, float, int]]:
    def key(each: ContainerSample) -> tuple[str, str]:
        return each.namespace, each.pod

    for (namespace, pod), group in groupby(sorted(containers, key=key), key):
        members = list(group)
        labels = {"namespace": namespace, "pod": pod}
        yield labels, sum(c.cpu for c in members), sum(c.memory for c in members)


def _metric(name: str, kind: str, values: Values, at: int = 0) -> Iterator[str]:
    """`at`: the time of the values in milliseconds; 0: that of the request."""
    yield f"# TYPE {name} {kind}"
    for labels, value in values:
        inside = ",".join(f'{label}="{text}"' for label, text in labels.items())
        yield f"{name}{{{inside}}} {value:.17g}{f' {at}' if at else ''}"
