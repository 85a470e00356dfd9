"""Pod garbage: situation → steps."""

from __future__ import annotations

import pytest

from volplane.api import codec
from volplane.api.core import Node, Pod
from volplane.controllers.podgc.plan import RemovePod, plan, surplus
from volplane.rules.waits import Wait


def pod(name: str = "p", *, on: str = "n", going: bool = False, phase: str = "Running", **more: str) -> Pod:
    metadata = {"name": name, "namespace": "ns", **more}
    if going:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status = {"phase": phase, "reason": "Evicted" if name.startswith("evicted") else ""}
    return codec.convert(Pod, {"metadata": metadata, "spec": {"nodeName": on}, "status": status})


def node(ready: str = "True", *, out: bool = False) -> Node:
    taints = [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}] if out else []
    conditions = [{"type": "Ready", "status": ready}]
    return codec.convert(Node, {"spec": {"taints": taints}, "status": {"conditions": conditions}})


@pytest.mark.parametrize(
    ("which", "where", "quarantine", "expected"),
    [
        pytest.param(pod(), node(), 0, "", id="a pod on its node"),
        pytest.param(pod(going=True), node(), 0, "", id="a kubelet ends it"),
        pytest.param(pod(), None, 0, "remove", id="its node is gone"),
        pytest.param(pod(), None, 30, "wait", id="its node may be late"),
        pytest.param(pod(phase="Succeeded"), None, 0, "remove", id="finished, and its node is gone"),
        pytest.param(pod(on="", going=True), None, 0, "remove", id="going, and never scheduled"),
        pytest.param(pod(on=""), None, 0, "", id="waits to be scheduled"),
        pytest.param(pod(going=True), node("Unknown", out=True), 0, "remove", id="out of service"),
        pytest.param(pod(going=True), node("False", out=True), 0, "remove", id="out of service, not ready"),
        pytest.param(pod(going=True), node("True", out=True), 0, "", id="out of service, but ready"),
        pytest.param(pod(going=True), node("Unknown"), 0, "", id="unknown, but not out of service"),
        pytest.param(pod(), node("Unknown", out=True), 0, "", id="out of service, but the pod is not going"),
    ],
)
def test_what_goes(which: Pod, where: Node | None, quarantine: float, expected: str) -> None:
    words = {RemovePod: "remove", Wait: "wait"}
    assert "".join(words[type(s)] for s in plan(which, where, quarantine=quarantine)) == expected


def test_finished_pods_beyond_the_threshold_go_evicted_and_oldest_first() -> None:
    pods = [
        pod("new", phase="Succeeded", creationTimestamp="2026-01-03T00:00:00Z"),
        pod("old", phase="Failed", creationTimestamp="2026-01-01T00:00:00Z"),
        pod("evicted", phase="Failed", creationTimestamp="2026-01-02T00:00:00Z"),
        pod("runs"),
    ]
    assert [p.name for p in surplus(pods, 1)] == ["evicted", "old"]
    assert surplus(pods, 3) == []
