"""Taint eviction: situation → how long a pod stays."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from volplane.api import codec
from volplane.api.core import Pod, Taint
from volplane.controllers.tainteviction.plan import EvictPod, TaintView, plan, toleration_seconds
from volplane.rules.steps import RecordEvent
from volplane.rules.waits import Wait, WaitData, WaitReason

LOST = Taint(key="lost", effect="NoExecute")
SICK = Taint(key="sick", value="very", effect="NoExecute")
AWAY = Taint(key="away", effect="NoSchedule")


def pod(*tolerations: dict[str, Any], going: bool = False, on: str = "n") -> Pod:
    metadata = {"name": "p", "namespace": "ns"}
    if going:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return codec.convert(Pod, {"metadata": metadata, "spec": {"nodeName": on, "tolerations": tolerations}})


def tolerating(key: str, seconds: int | None = None, **more: Any) -> dict[str, Any]:
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds, **more}


@pytest.mark.parametrize(
    ("which", "taints", "seconds"),
    [
        pytest.param(pod(), [LOST], 0, id="not tolerated"),
        pytest.param(pod(), [AWAY], inf, id="a NoSchedule taint evicts no pod"),
        pytest.param(pod(tolerating("lost")), [LOST], inf, id="tolerated for ever"),
        pytest.param(pod(tolerating("lost", 300)), [LOST], 300, id="tolerated for a while"),
        pytest.param(pod(tolerating("lost", 300)), [LOST, SICK], 0, id="one of two is not tolerated"),
        pytest.param(
            pod(tolerating("lost", 300), tolerating("sick", 60)), [LOST, SICK], 60, id="the shortest counts"
        ),
        pytest.param(pod(tolerating("lost", -5)), [LOST], 0, id="a negative time is none"),
        pytest.param(pod({"operator": "Exists"}), [LOST, SICK], inf, id="tolerates everything"),
        pytest.param(
            pod({"key": "sick", "value": "a bit", "effect": "NoExecute"}), [SICK], 0, id="another value"
        ),
    ],
)
def test_toleration_seconds(which: Pod, taints: list[Taint], seconds: float) -> None:
    assert toleration_seconds(which, taints) == seconds


def test_a_pod_waits_and_then_goes() -> None:
    which = pod(tolerating("lost", 300))
    assert list(plan(TaintView(which, [LOST], 100))) == [
        Wait(WaitReason.TOLERATION, WaitData(names=("lost",)), 200.0)
    ]
    assert list(plan(TaintView(which, [LOST], 300))) == [EvictPod()]


def test_a_pod_that_goes_already_is_left_alone() -> None:
    assert list(plan(TaintView(pod(going=True), [LOST]))) == []
    assert list(plan(TaintView(pod(on=""), [LOST]))) == []


def test_a_pod_that_was_to_go_and_may_stay_after_all_is_told_so() -> None:
    which = pod(tolerating("lost", 300))
    (event,) = plan(TaintView(which, [], announced=True))
    assert isinstance(event, RecordEvent)
    assert (event.reason, event.message) == (
        "TaintManagerEviction",
        f"Cancelling deletion of Pod {which.key}",
    )
    assert list(plan(TaintView(which, []))) == []
