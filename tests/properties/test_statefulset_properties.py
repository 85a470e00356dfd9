"""A stateful set's plan, applied to its own result, comes to rest, wherever it was interrupted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from volplane.api import codec
from volplane.api.apps import ControllerRevision, StatefulSet
from volplane.api.core import PersistentVolumeClaim, Pod, PodCondition, PodStatus
from volplane.controllers.statefulset import identity, plan, revisions

NOW = datetime(2026, 1, 1, tzinfo=UTC)
READY = (PodCondition(type="Ready", status="True", last_transition_time="2025-01-01T00:00:00Z"),)


class StatefulSetPlane:
    """Set, pods, claims and revisions, changed by the steps of a plan as the API server would."""

    def __init__(self, wanted: StatefulSet) -> None:
        self.wanted = wanted
        self.pods: dict[str, Pod] = {}
        self.claims: dict[str, PersistentVolumeClaim] = {}
        self.revisions: dict[str, ControllerRevision] = {}
        self.uids = 0
        self.left: set[str] = (
            set()
        )  # claims of pods that were away when the set gave them up: without an owner, they stay

    def steps(self) -> list[Any]:
        view = plan.StatefulSetView(
            self.wanted,
            NOW,
            pods=list(self.pods.values()),
            revisions=list(self.revisions.values()),
            claims=self.claims,
        )
        return list(plan.plan(view))

    def round(self, until: int | None = None) -> bool:
        """Do what the plan says, or its first steps only; then pods become ready, and deleted ones go."""
        steps = [s for s in self.steps() if not isinstance(s, plan.Wait | plan.RecordEvent)]
        for step in steps[:until]:
            self.act(step)
        self.live()
        return bool(steps)

    def act(self, step: Any) -> None:
        match step:
            case plan.CreateRevision(made):
                self.revisions[made.name] = made
            case plan.SetRevisionNumber(held, number):
                self.revisions[held.name] = structs.replace(held, number=number)
            case plan.DeleteRevision(held):
                self.revisions.pop(held.name)
            case plan.SetStatefulSetStatus(status):
                self.wanted = structs.replace(self.wanted, status=status)
            case plan.CreatePodWithClaims(made, claims) | plan.CreateClaims(made, claims):
                for claim in claims:
                    self.claims.setdefault(claim.name, claim)
                if isinstance(step, plan.CreatePodWithClaims):
                    assert made.name not in self.pods
                    self.uids += 1
                    meta = structs.replace(made.metadata, uid=f"u{self.uids}")
                    pending = PodStatus(phase="Pending")
                    self.pods[made.name] = structs.replace(made, metadata=meta, status=pending)
            case plan.SetOwnerRefs(claim, owners):
                meta = structs.replace(claim.metadata, owner_references=owners)
                self.claims[claim.name] = structs.replace(claim, metadata=meta)
            case plan.DeletePod(gone):
                meta = structs.replace(gone.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
                self.pods[gone.name] = structs.replace(self.pods[gone.name], metadata=meta)
            case _:
                raise AssertionError(step)

    def live(self) -> None:
        for name, pod in list(self.pods.items()):
            if pod.is_deleting:
                del self.pods[name]
                self.collect(pod)
            else:
                running = PodStatus(phase="Running", conditions=READY)
                self.pods[name] = structs.replace(pod, status=running)

    def collect(self, pod: Pod) -> None:
        """Garbage collection: claims that belonged to the pod go with it."""
        for name, claim in list(self.claims.items()):
            if any(r.uid == pod.uid for r in claim.metadata.owner_references):
                del self.claims[name]

    def settle(self) -> None:
        for _ in range(200):
            if not self.round():
                return
        pytest.fail(f"it never comes to rest: {self.steps()}")

    def change(self, **spec: Any) -> None:
        data = codec.to_dict(self.wanted)
        for key, value in spec.items():
            data["spec"][key] = value
        data["metadata"]["generation"] = self.wanted.metadata.generation + 1
        self.wanted = codec.convert(StatefulSet, data)
        names = {f"db-{ordinal}" for ordinal in identity.ordinals(self.wanted)}
        for pod in {name.removeprefix("data-") for name in self.claims} - names:
            if pod not in self.pods or self.pods[pod].is_deleting:
                self.left.add(f"data-{pod}")


def stateful(replicas: int, policy: str, scaled: str, deleted: str) -> StatefulSet:
    return codec.convert(
        StatefulSet,
        {
            "metadata": {"name": "db", "namespace": "ns", "uid": "set", "generation": 1},
            "spec": {
                "replicas": replicas,
                "podManagementPolicy": policy,
                "selector": {"matchLabels": {"app": "db"}},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
                "revisionHistoryLimit": 2,
                "persistentVolumeClaimRetentionPolicy": {"whenScaled": scaled, "whenDeleted": deleted},
                "template": template("a"),
                "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
            },
        },
    )


def template(image: str) -> dict[str, Any]:
    container = {"name": "c", "image": image}
    return {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [container]}}


changes = st.one_of(
    st.fixed_dictionaries({"replicas": st.integers(0, 5)}),
    st.fixed_dictionaries({"template": st.sampled_from("abc").map(template)}),
    st.fixed_dictionaries({"ordinals": st.fixed_dictionaries({"start": st.integers(0, 3)})}),
)
retention = st.sampled_from(("Retain", "Delete"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    policy=st.sampled_from(("OrderedReady", "Parallel")),
    scaled=retention,
    deleted=retention,
    script=st.lists(st.tuples(changes, st.integers(0, 6)), max_size=5),
)
def test_whatever_changes_and_wherever_it_is_interrupted_the_set_comes_to_what_was_asked(
    policy: str, scaled: str, deleted: str, script: list[tuple[dict[str, Any], int]]
) -> None:
    plane = StatefulSetPlane(stateful(3, policy, scaled, deleted))
    for change, crash in script:
        plane.change(**change)
        plane.round(until=crash)  # the process dies after so many steps of its plan
        plane.round(until=1)
    plane.settle()
    wanted = plane.wanted
    names = {f"db-{ordinal}" for ordinal in identity.ordinals(wanted)}
    assert set(plane.pods) == names
    current = revisions.history(wanted, plane.revisions.values()).update.name
    assert {p.metadata.labels[revisions.POD_LABEL] for p in plane.pods.values()} <= {current}
    assert wanted.status.current_revision == wanted.status.update_revision == current
    assert wanted.status.ready_replicas == len(names)
    kept = {f"data-{name}" for name in names}
    assert kept <= set(plane.claims)
    if scaled == "Delete":
        assert set(plane.claims) - kept <= plane.left
    assert len(plane.revisions) <= 4
