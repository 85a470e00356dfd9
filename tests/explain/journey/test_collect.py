"""The metrics of kubelets in journeys that are derived from objects."""

from __future__ import annotations

import asyncio

from tests.controllers import objects
from tests.explain import explain_objects
from volplane.api.errors import Unavailable
from volplane.explain.journey.collect import derive_journeys


async def test_each_node_is_asked_once_for_all_claims_and_all_at_the_same_time() -> None:
    pairs = [explain_objects.bound_pair(name, f"pv-{name}") for name in ("a", "b")]
    pod = explain_objects.pod("web", "a", "b", on="worker-1")
    attachments = [explain_objects.attachment(volume.name, "worker-2") for _, volume in pairs]
    state = explain_objects.cluster_of(*(obj for pair in pairs for obj in pair), *attachments, pod)
    asked: list[str] = []
    all_asked = asyncio.Event()

    async def read_metrics(node: str) -> str:
        asked.append(node)
        if len(asked) == 2:
            all_asked.set()
        await all_asked.wait()
        if node == "worker-2":
            raise Unavailable("lost")
        return ""

    journeys = await derive_journeys(state, pod, read_metrics)
    assert sorted(asked) == ["worker-1", "worker-2"]
    assert len(journeys) == 2
    for journey in journeys:
        assert [line for line in journey.unknown if "metrics of the kubelet of worker-2: " in line]


async def test_a_claim_that_is_deleted_already_has_the_journey_of_its_volume() -> None:
    claim, volume = explain_objects.bound_pair("data", "pv-1")
    volume = explain_objects.change(volume, metadata={"creationTimestamp": explain_objects.at(60)})
    state = explain_objects.cluster_of(objects.claim("other"), volume)
    (journey,) = await derive_journeys(state, claim)
    assert {step.subject for step in journey.steps} >= {"pv/pv-1"}
