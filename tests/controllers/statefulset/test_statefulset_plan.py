"""StatefulSet: situation → steps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from volplane.api import codec
from volplane.api.apps import ControllerRevision, StatefulSet, StatefulSetStatus
from volplane.api.core import PersistentVolumeClaim, Pod, PodCondition, PodStatus
from volplane.api.meta import ObjectMeta, OwnerReference
from volplane.base import clock
from volplane.controllers.statefulset import identity, revisions
from volplane.controllers.statefulset import plan as sts
from volplane.rules.steps import RecordEvent
from volplane.rules.waits import Wait, WaitData, WaitReason
from volplane.rules.workloads import owner_reference

NOW = datetime(2026, 1, 1, tzinfo=UTC)
READY = "ready"
GOING = "2026-01-01T00:00:00Z"
META = {"name": "web", "namespace": "ns", "uid": "set", "generation": 2}


def stateful(replicas: int = 3, image: str = "a", **spec: Any) -> StatefulSet:
    whole = {
        "metadata": {
            "name": "web",
            "namespace": "ns",
            "uid": "set",
            "generation": 2,
            **spec.pop("metadata", {}),
        },
        "spec": {
            "replicas": replicas,
            "serviceName": "svc",
            "podManagementPolicy": "OrderedReady",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": image}]},
            },
            **spec,
        },
    }
    return codec.convert(StatefulSet, whole)


TEMPLATES = [
    {"metadata": {"name": "data", "labels": {"tier": "db"}}, "spec": {"accessModes": ["ReadWriteOnce"]}}
]


def make_revision(wanted: StatefulSet, number: int = 1) -> ControllerRevision:
    made = revisions.new_revision(wanted, revisions.data_of(wanted.spec.template), number)
    return structs.replace(made, metadata=structs.replace(made.metadata, uid=f"rev-{number}"))


def pod(wanted: StatefulSet, ordinal: int, state: str = READY, ago: float = 3600.0) -> Pod:
    """`state`: ready, unready, pending, failed, going, or gone-to-be combined as `unready going`."""
    revision = revisions.TemplateRevision(make_revision(wanted).name, wanted.spec.template)
    made = identity.new_pod(wanted, revision, ordinal)
    words = state.split()
    since = clock.stamp(NOW - timedelta(seconds=ago))
    conditions = (PodCondition(type="Ready", status="True", last_transition_time=since),)
    phase = {"pending": "Pending", "failed": "Failed"}.get(words[0], "Running")
    return structs.replace(
        made,
        metadata=structs.replace(
            made.metadata,
            uid=f"pod-{ordinal}",
            deletion_timestamp="2026-01-01T00:00:00Z" if "going" in words else None,
        ),
        status=PodStatus(phase=phase, conditions=conditions if words[0] in (READY, "going") else ()),
    )


def view(wanted: StatefulSet, *pods: Pod, **more: Any) -> sts.StatefulSetView:
    more.setdefault("revisions", [make_revision(wanted)])
    return sts.StatefulSetView(wanted, NOW, pods=pods, **more)


def describe_steps(steps: list[Any]) -> list[str]:
    """The deeds in short."""
    said = []
    for step in steps:
        match step:
            case sts.CreatePodWithClaims(made, _):
                said.append(f"+{made.name.removeprefix('web-')}")
            case sts.DeletePod(gone):
                said.append(f"-{gone.name.removeprefix('web-')}")
            case _:
                pass
    return said


def plan_steps(wanted: StatefulSet, *pods: Pod, **more: Any) -> list[str]:
    return describe_steps(list(sts.plan(view(wanted, *pods, **more))))


SET = stateful()


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        pytest.param({}, ["+0"], id="the first pod is made alone"),
        pytest.param({0: "pending"}, [], id="the second waits for the first"),
        pytest.param({0: "unready"}, [], id="running is not enough, it must be ready"),
        pytest.param({0: READY}, ["+1"], id="a ready pod lets the next one in"),
        pytest.param({0: READY, 1: READY, 2: READY}, [], id="all there"),
        pytest.param({1: READY, 2: READY}, ["+0"], id="a gap is filled first"),
        pytest.param({0: "going", 1: READY, 2: READY}, [], id="a pod that goes is waited for"),
        pytest.param({0: "failed", 1: READY, 2: READY}, ["-0"], id="a failed pod makes room"),
        pytest.param({0: "failed going", 1: READY}, [], id="the failed pod is on its way already"),
        pytest.param({0: READY, 1: READY, 2: READY, 3: READY, 4: READY}, ["-4"], id="the highest goes first"),
        pytest.param({0: READY, 1: READY, 2: READY, 3: READY, 4: "going"}, [], id="one goes at a time"),
        pytest.param({0: READY, 1: "unready", 2: READY, 3: READY}, [], id="nothing goes while one misses"),
        pytest.param(
            {0: READY, 1: READY, 2: READY, 3: "unready", 4: "unready"},
            [],
            id="an unready surplus pod waits for the one before it",
        ),
        pytest.param(
            {0: READY, 1: READY, 2: READY, 3: READY, 4: "unready"}, ["-4"], id="the only unready one may go"
        ),
    ],
)
def test_in_order(states: dict[int, str], expected: list[str]) -> None:
    assert plan_steps(SET, *(pod(SET, o, s) for o, s in states.items())) == expected


AT_ONCE = stateful(podManagementPolicy="Parallel")


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        pytest.param({}, ["+0", "+1", "+2"], id="all are made at the same time"),
        pytest.param({0: "unready"}, ["+1", "+2"], id="no pod waits for a sibling"),
        pytest.param(
            {0: "unready", 1: READY, 2: READY, 3: READY, 4: "unready"}, ["-4", "-3"], id="all surplus goes"
        ),
        pytest.param({0: "failed", 1: READY, 2: READY}, ["-0"], id="a failed pod makes room"),
    ],
)
def test_at_once(states: dict[int, str], expected: list[str]) -> None:
    assert plan_steps(AT_ONCE, *(pod(AT_ONCE, o, s) for o, s in states.items())) == expected


def test_ordinals_begin_where_the_set_says() -> None:
    wanted = stateful(2, ordinals={"start": 5})
    assert plan_steps(wanted) == ["+5"]
    assert plan_steps(wanted, pod(wanted, 5)) == ["+6"]
    # Moving the start makes the new ones first and then gives up the old.
    assert plan_steps(wanted, pod(wanted, 0), pod(wanted, 5)) == ["+6"]
    assert plan_steps(wanted, pod(wanted, 0), pod(wanted, 5), pod(wanted, 6)) == ["-0"]


def test_a_pod_has_a_name_labels_and_a_host() -> None:
    wanted = stateful(volumeClaimTemplates=TEMPLATES)
    (create,) = [s for s in sts.plan(view(wanted)) if isinstance(s, sts.CreatePodWithClaims)]
    made = create.pod
    assert made.name == "web-0"
    assert made.metadata.labels == {
        "app": "web",
        "statefulset.kubernetes.io/pod-name": "web-0",
        "apps.kubernetes.io/pod-index": "0",
        "controller-revision-hash": make_revision(wanted).name,
    }
    assert (made.spec.hostname, made.spec.subdomain) == ("web-0", "svc")
    assert made.metadata.owner_references == (owner_reference(wanted),)
    (volume,) = made.spec.volumes
    assert volume.persistent_volume_claim is not None
    assert (volume.name, volume.persistent_volume_claim.claim_name) == ("data", "data-web-0")


def test_a_claim_stands_before_its_pod_with_the_labels_of_template_and_selector() -> None:
    wanted = stateful(volumeClaimTemplates=TEMPLATES)
    (create,) = [s for s in sts.plan(view(wanted)) if isinstance(s, sts.CreatePodWithClaims)]
    (claim,) = create.claims
    assert (claim.namespace, claim.name) == ("ns", "data-web-0")
    assert claim.metadata.labels == {"tier": "db", "app": "web"}
    assert claim.metadata.owner_references == ()
    # One that is there is used again, whatever it looks like.
    (again,) = [
        s
        for s in sts.plan(view(wanted, claims={claim.name: claim}))
        if isinstance(s, sts.CreatePodWithClaims)
    ]
    assert again.claims == ()


def test_a_volume_of_the_template_gives_way_to_a_claim_of_its_name() -> None:
    wanted = stateful(volumeClaimTemplates=TEMPLATES)
    spec = structs.replace(
        wanted.spec.template.spec,
        volumes=codec.convert(Pod, {"spec": {"volumes": [{"name": "data"}, {"name": "tmp"}]}}).spec.volumes,
    )
    template = structs.replace(wanted.spec.template, spec=spec)
    made = identity.new_pod(wanted, revisions.TemplateRevision("r", template), 0)
    assert [v.name for v in made.spec.volumes] == ["data", "tmp"]
    assert made.spec.volumes[0].persistent_volume_claim is not None


def claim(name: str = "data-web-0", *owners: OwnerReference, going: bool = False) -> PersistentVolumeClaim:
    metadata = ObjectMeta(
        name=name,
        namespace="ns",
        uid=name,
        owner_references=owners,
        deletion_timestamp="x" if going else None,
    )
    return PersistentVolumeClaim(metadata=metadata)


def test_a_pod_waits_while_its_claim_is_being_deleted() -> None:
    wanted = stateful(volumeClaimTemplates=TEMPLATES)
    steps = list(sts.plan(view(wanted, claims={"data-web-0": claim(going=True)})))
    assert describe_steps(steps) == []
    (said,) = [s for s in steps if isinstance(s, RecordEvent)]
    assert said.message == "Create Pod web-0 in StatefulSet web failed error: pvc data-web-0 is being deleted"


def test_a_pending_pod_gets_its_missing_claims() -> None:
    wanted = stateful(volumeClaimTemplates=TEMPLATES)
    (supply,) = [
        s for s in sts.plan(view(wanted, pod(wanted, 0, "pending"))) if isinstance(s, sts.CreateClaims)
    ]
    assert [c.name for c in supply.claims] == ["data-web-0"]


# Updates


OLD, NEW = stateful(image="a"), stateful(image="b")
BOTH = [make_revision(OLD, 1), make_revision(NEW, 2)]


def rolling(partition: int | None, kind: str = "RollingUpdate", **spec: Any) -> StatefulSet:
    update: dict[str, Any] = {"type": kind}
    if partition is not None:
        update["rollingUpdate"] = {"partition": partition}
    wanted = stateful(image="b", updateStrategy=update, **spec)
    return structs.replace(
        wanted, status=StatefulSetStatus(current_revision=make_revision(OLD).name, current_replicas=3)
    )


@pytest.mark.parametrize(
    ("wanted", "pods", "expected"),
    [
        pytest.param(rolling(0), "aaa", ["-2"], id="the highest is replaced first"),
        pytest.param(rolling(0), "aab", ["-1"], id="then the next"),
        pytest.param(rolling(0), "bbb", [], id="until all are new"),
        pytest.param(rolling(2), "aaa", ["-2"], id="the partition bounds it"),
        pytest.param(rolling(2), "aab", [], id="those below the partition stay"),
        pytest.param(rolling(3), "aaa", [], id="a partition of all stages the update"),
        pytest.param(rolling(9), "aaa", [], id="a partition beyond all too"),
        pytest.param(rolling(None, "OnDelete"), "aaa", [], id="OnDelete replaces nothing by itself"),
        pytest.param(rolling(None), "aaa", ["-2"], id="without a partition all are replaced"),
        pytest.param(rolling(0), "aa.", ["+2b"], id="a missing pod is made from the new template"),
        pytest.param(rolling(2), "a.b", ["+1a"], id="below the partition from the old one"),
        pytest.param(rolling(None, "OnDelete"), "a.a", ["+1b"], id="OnDelete: who is deleted comes back new"),
    ],
)
def test_updates(wanted: StatefulSet, pods: str, expected: list[str]) -> None:
    present = [pod({"a": OLD, "b": NEW}[which], o) for o, which in enumerate(pods) if which != "."]
    steps = list(sts.plan(view(wanted, *present, revisions=BOTH)))
    shown = {make_revision(OLD).name: "a", make_revision(NEW).name: "b"}
    made = {
        s.pod.name: shown[s.pod.metadata.labels[revisions.POD_LABEL]]
        for s in steps
        if isinstance(s, sts.CreatePodWithClaims)
    }
    assert [word + made.get(f"web-{word[1:]}", "") for word in describe_steps(steps)] == expected
    for step in steps:
        if isinstance(step, sts.CreatePodWithClaims):
            image = step.pod.spec.containers[0].image
            assert image == shown[step.pod.metadata.labels[revisions.POD_LABEL]]


def test_an_update_waits_for_the_pod_it_replaced() -> None:
    wanted = rolling(0)
    steps = list(sts.plan(view(wanted, pod(OLD, 0), pod(OLD, 1), pod(NEW, 2, "unready"), revisions=BOTH)))
    assert describe_steps(steps) == []
    assert Wait(WaitReason.POD_NOT_READY, WaitData(pods=("web-2",))) in steps


def test_a_new_template_is_recorded_before_anything_else() -> None:
    steps = list(
        sts.plan(view(rolling(0), pod(OLD, 0), pod(OLD, 1), pod(OLD, 2), revisions=[make_revision(OLD)]))
    )
    first = steps[0]
    assert isinstance(first, sts.CreateRevision)
    assert (first.revision.number, first.revision.name) == (2, make_revision(NEW).name)
    assert first.revision.data["spec"]["template"]["$patch"] == "replace"
    assert first.revision.metadata.labels["app"] == "web"
    assert describe_steps(steps) == ["-2"]


def test_going_back_gives_the_old_revision_the_newest_number() -> None:
    back = structs.replace(OLD, status=StatefulSetStatus(current_revision=make_revision(NEW).name))
    steps = list(sts.plan(view(back, pod(NEW, 0), pod(NEW, 1), pod(NEW, 2), revisions=BOTH)))
    (renumber,) = [s for s in steps if isinstance(s, sts.SetRevisionNumber)]
    assert (renumber.revision.name, renumber.number) == (make_revision(OLD).name, 3)
    assert describe_steps(steps) == ["-2"]


def test_history_beyond_the_limit_is_forgotten_oldest_first() -> None:
    wanted = stateful(image="z", revisionHistoryLimit=1)
    past = [make_revision(stateful(image=word), n) for n, word in enumerate("abc", 1)]
    steps = list(sts.plan(view(wanted, pod(stateful(image="a"), 0), revisions=past)))
    # `a` still runs, `c` is the one that may stay
    assert [s.revision.number for s in steps if isinstance(s, sts.DeleteRevision)] == [2]
    keeps = stateful(image="z", revisionHistoryLimit=-1)
    assert not [s for s in sts.plan(view(keeps, revisions=past)) if isinstance(s, sts.DeleteRevision)]


# Retention


def retention(when_deleted: str, when_scaled: str) -> StatefulSet:
    policy = {"whenDeleted": when_deleted, "whenScaled": when_scaled}
    return stateful(1, volumeClaimTemplates=TEMPLATES, persistentVolumeClaimRetentionPolicy=policy)


@pytest.mark.parametrize(
    ("policy", "kept_by", "given_up_by"),
    [
        pytest.param(("Retain", "Retain"), [], [], id="both retain: no owner"),
        pytest.param(("Delete", "Retain"), ["StatefulSet"], ["StatefulSet"], id="goes with the set only"),
        pytest.param(("Retain", "Delete"), [], ["Pod"], id="goes with the pod that is scaled away"),
        pytest.param(("Delete", "Delete"), ["StatefulSet"], ["Pod"], id="with either"),
    ],
)
def test_the_retention_policy_is_told_in_owner_references(
    policy: tuple[str, str], kept_by: list[str], given_up_by: list[str]
) -> None:
    wanted = retention(*policy)
    kept, surplus = pod(wanted, 0), pod(wanted, 1)
    for start in ((), (owner_reference(wanted),), (owner_reference(kept),)):
        held = claim("data-web-0", *start)
        assert [r.kind for r in identity.owners(held, wanted, kept, given_up=False)] == kept_by
    for start in ((), (owner_reference(wanted),), (owner_reference(surplus),)):
        held = claim("data-web-1", *start)
        assert [r.kind for r in identity.owners(held, wanted, surplus, given_up=True)] == given_up_by


def test_a_claim_changes_hands_before_its_pod_is_given_up() -> None:
    wanted = retention("Retain", "Delete")
    claims = {"data-web-0": claim("data-web-0"), "data-web-1": claim("data-web-1")}
    steps = list(sts.plan(view(wanted, pod(wanted, 0), pod(wanted, 1), claims=claims)))
    acts = [s for s in steps if isinstance(s, sts.SetOwnerRefs | sts.DeletePod)]
    own, delete = acts
    assert isinstance(own, sts.SetOwnerRefs)
    assert [(r.kind, r.uid, r.controller) for r in own.owners] == [("Pod", "pod-1", True)]
    assert isinstance(delete, sts.DeletePod)


def test_a_claim_that_goes_with_an_earlier_pod_is_not_used_again() -> None:
    wanted = retention("Retain", "Delete")
    earlier = OwnerReference(api_version="v1", kind="Pod", name="web-0", uid="before", controller=True)
    steps = list(sts.plan(view(wanted, claims={"data-web-0": claim("data-web-0", earlier)})))
    assert describe_steps(steps) == []
    data = WaitData(claim="data-web-0", pods=("web-0",))
    assert [s for s in steps if isinstance(s, Wait)] == [Wait(WaitReason.CLAIM_OF_EARLIER_POD, data)]


def test_a_claim_that_another_controls_is_left_alone() -> None:
    wanted = retention("Delete", "Delete")
    other = OwnerReference(api_version="v1", kind="X", name="x", uid="x", controller=True)
    held = claim("data-web-0", other)
    assert identity.owners(held, wanted, pod(wanted, 0), given_up=False) == (other,)
    mixed = claim("data-web-0", other, owner_reference(wanted))
    steps = list(sts.plan(view(wanted, pod(wanted, 0), claims={"data-web-0": mixed})))
    (own,) = [s for s in steps if isinstance(s, sts.SetOwnerRefs)]
    assert own.owners == (other,)
    assert [s.reason for s in steps if isinstance(s, RecordEvent)] == ["ConflictingController"]


def test_a_new_claim_is_born_with_its_owner() -> None:
    wanted = retention("Delete", "Retain")
    (create,) = [s for s in sts.plan(view(wanted)) if isinstance(s, sts.CreatePodWithClaims)]
    assert create.claims[0].metadata.owner_references == (owner_reference(wanted),)


# Adoption


def make_orphan(made: Pod) -> Pod:
    return structs.replace(made, metadata=structs.replace(made.metadata, owner_references=()))


def test_orphans_with_our_name_and_labels_are_adopted_before_anything_is_made() -> None:
    mine = make_orphan(pod(SET, 1))
    foreign = structs.replace(mine, metadata=structs.replace(mine.metadata, name="other-1"))
    unlabelled = structs.replace(mine, metadata=structs.replace(mine.metadata, name="web-2", labels={}))
    going = structs.replace(mine, metadata=structs.replace(mine.metadata, deletion_timestamp="now"))
    steps = list(sts.plan(view(SET, pod(SET, 0), orphans=[going, mine, foreign, unlabelled])))
    assert steps == [sts.AdoptObject(mine)]


def test_a_pod_that_no_longer_matches_is_let_go() -> None:
    stray = structs.replace(pod(SET, 0), metadata=structs.replace(pod(SET, 0).metadata, labels={"app": "x"}))
    steps = list(sts.plan(view(SET, stray)))
    assert sts.ReleaseObject(stray) in steps
    assert describe_steps(steps) == ["+0"]


def test_an_adopted_pod_gets_its_labels() -> None:
    plain = structs.replace(
        pod(SET, 0), metadata=structs.replace(pod(SET, 0).metadata, labels={"app": "web"})
    )
    (label,) = [s for s in sts.plan(view(SET, plain)) if isinstance(s, sts.SetPodLabels)]
    assert label.labels == {
        "statefulset.kubernetes.io/pod-name": "web-0",
        "apps.kubernetes.io/pod-index": "0",
    }


# Status


def test_a_set_at_rest_reports_once() -> None:
    pods = [pod(SET, o) for o in range(3)]
    (report,) = sts.plan(view(SET, *pods))
    assert isinstance(report, sts.SetStatefulSetStatus)
    name = make_revision(SET).name
    assert report.status == StatefulSetStatus(
        observed_generation=2,
        replicas=3,
        ready_replicas=3,
        available_replicas=3,
        current_replicas=3,
        updated_replicas=3,
        current_revision=name,
        update_revision=name,
        collision_count=0,
    )
    assert list(sts.plan(view(structs.replace(SET, status=report.status), *pods))) == []


def test_a_finished_update_makes_the_new_revision_current() -> None:
    wanted = rolling(0)
    half = list(sts.plan(view(wanted, pod(OLD, 0), pod(NEW, 1), pod(NEW, 2), revisions=BOTH)))
    (report,) = [s for s in half if isinstance(s, sts.SetStatefulSetStatus)]
    status = report.status
    assert (status.current_revision, status.update_revision) == (
        make_revision(OLD).name,
        make_revision(NEW).name,
    )
    assert (status.current_replicas, status.updated_replicas) == (1, 2)
    done = list(sts.plan(view(wanted, pod(NEW, 0), pod(NEW, 1), pod(NEW, 2), revisions=BOTH)))
    (report,) = [s for s in done if isinstance(s, sts.SetStatefulSetStatus)]
    assert report.status.current_revision == report.status.update_revision == make_revision(NEW).name
    assert report.status.current_replicas == 3


def test_min_ready_seconds_hold_the_next_pod_back_and_ring_in_time() -> None:
    wanted = stateful(minReadySeconds=60)
    steps = list(sts.plan(view(wanted, pod(wanted, 0, ago=20))))
    assert describe_steps(steps) == []
    assert Wait(WaitReason.MIN_READY_SECONDS, seconds=40.0) in steps
    (report,) = [s for s in steps if isinstance(s, sts.SetStatefulSetStatus)]
    assert (report.status.ready_replicas, report.status.available_replicas) == (1, 0)
    assert plan_steps(wanted, pod(wanted, 0, ago=60)) == ["+1"]


def test_a_set_on_its_way_out_only_reports() -> None:
    going = stateful(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert [type(s) for s in sts.plan(view(going, pod(going, 0)))] == [sts.SetStatefulSetStatus]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("web-0", ("web", 0), id="plain"),
        pytest.param("my-web-12", ("my-web", 12), id="a dash in the name"),
        pytest.param("web", ("", -1), id="no ordinal"),
        pytest.param("web-99999999999", ("", -1), id="no 32-bit ordinal"),
    ],
)
def test_a_name_tells_set_and_ordinal(name: str, expected: tuple[str, int]) -> None:
    assert identity.parse(name) == expected
