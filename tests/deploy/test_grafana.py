"""The Grafana dashboard asks for metrics, labels and label values that a running cluster serves."""

from __future__ import annotations

import json
import re
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.scenarios.test_journeys import MANIFEST
from tests.support.up import Up
from volplane.base import metrics

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "volumes.json"
WORDS = frozenset(["histogram_quantile", "sum", "by", "le", "rate", "increase", "__rate_interval"])
SUFFIXES = ("_bucket", "_sum", "_count")
DERIVED = re.compile(rf"({'|'.join(SUFFIXES)})$")


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]


def metric_names(expression: str) -> set[str]:
    without_strings = re.sub(r'"[^"]*"', "", expression)
    without_labels = re.sub(r"\{[^}]*\}|by \([^)]*\)|\[[^]]*\]", "", without_strings)
    return {word for word in re.findall(r"[a-z_][a-z_0-9]*", without_labels) if word not in WORDS}


def label_names(expression: str, legend: str) -> set[str]:
    selected = re.findall(r"([a-z_]+)\s*!?=~?\s*\"", expression)
    grouped = [
        name.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for name in group.split(",")
    ]
    return {*selected, *grouped, *re.findall(r"\{\{(\w+)\}\}", legend)} - {"le"}


def declared_labels() -> dict[str, tuple[str, ...]]:
    import tests.docs.test_reference as reference

    reference._tool().page()  # imports every module that declares metrics
    found: dict[str, tuple[str, ...]] = {}
    for name, kind, labels, _ in metrics.list_declared():
        names = [f"{name}{suffix}" for suffix in SUFFIXES] if kind == "histogram" else [name]
        if kind == "counter" and not name.endswith("_total"):
            names = [f"{name}_total"]
        found |= dict.fromkeys(names, tuple(labels))
    return found


@pytest.mark.parametrize(("expression", "legend"), list(expressions()))
def test_every_metric_and_label_of_the_dashboard_is_served(expression: str, legend: str) -> None:
    known = declared_labels()
    names = metric_names(expression)
    assert names
    assert names <= known.keys()
    labels = set.intersection(*({*known[name]} for name in names))
    assert label_names(expression, legend) <= labels


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.peer("kubectl")
def test_the_values_that_the_dashboard_selects_exist_in_a_cluster() -> None:
    with Up(nodes=1) as up:
        up.apply(MANIFEST)
        up.wait("the pod runs", lambda: up.phase("web") == "Running")
        served = read_samples(up)
        for expression, _ in expressions():
            for name, selector in re.findall(r"([a-z_0-9]+)\{([^}]*)\}", expression):
                for label, value in re.findall(r'(\w+)="([^"]*)"', selector):
                    if label != "grpc_status_code":  # errors do not occur in this cluster
                        assert value in {labels.get(label) for labels in served[name]}, f"{name} {label}"


def read_samples(up: Up) -> dict[str, list[dict[str, str]]]:
    """The labels of all samples by name."""
    token = (up.directory / "pki" / "admin.token").read_text().strip()
    url = json.loads(up.kubectl("config", "view", "-o", "json"))["clusters"][0]["cluster"]["server"]
    request = urllib.request.Request(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"})
    context = ssl.create_default_context(cafile=str(up.directory / "pki" / "ca.crt"))
    with urllib.request.urlopen(request, context=context) as answer:
        text = answer.read().decode()
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found
