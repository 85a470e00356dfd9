"""ReplicaSet, Deployment and DaemonSet: situation → steps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from volplane.api.apps import (
    DaemonSet,
    DaemonSetSpec,
    DaemonSetUpdateStrategy,
    Deployment,
    DeploymentSpec,
    DeploymentStrategy,
    ReplicaSet,
    ReplicaSetCondition,
    ReplicaSetSpec,
    ReplicaSetStatus,
    RollingUpdateDeployment,
)
from volplane.api.core import (
    Container,
    Node,
    NodeSpec,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    PodTemplateSpec,
    ReplicationController,
    ReplicationControllerSpec,
    Taint,
)
from volplane.api.meta import LabelSelector, ObjectMeta
from volplane.controllers.daemonset import plan as daemon
from volplane.controllers.deployment import plan as deploy
from volplane.controllers.replicaset import plan as replica
from volplane.rules.adoption import AdoptObject, ReleaseObject
from volplane.rules.waits import Wait, WaitReason
from volplane.rules.workloads import workload_batches

NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)

SELECTOR = LabelSelector(match_labels={"app": "x"})
READY = (PodCondition(type="Ready", status="True"),)


def plan_replicas(wanted: replica.Wanted, pods: list[Pod], now: datetime, **more: Any) -> list[Any]:
    return list(replica.plan(replica.ReplicaSetView(wanted, pods, more.pop("orphans", ()), now, **more)))


def plan_sets(wanted: Deployment, sets: list[ReplicaSet], now: str, **more: Any) -> list[Any]:
    return list(deploy.plan(deploy.DeploymentView(wanted, sets, now, **more)))


def template(image: str = "a") -> PodTemplateSpec:
    return PodTemplateSpec(
        metadata=ObjectMeta(labels={"app": "x"}), spec=PodSpec(containers=(Container(name="c", image=image),))
    )


def pod(
    name: str, *, ready: bool = True, node: str = "n", phase: str = "Running", going: bool = False
) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, labels={"app": "x"}, deletion_timestamp="now" if going else None),
        spec=PodSpec(node_name=node),
        status=PodStatus(phase=phase, conditions=READY if ready else ()),
    )


def replicaset(replicas: int | None = 2) -> ReplicaSet:
    return ReplicaSet(
        metadata=ObjectMeta(name="s", namespace="d", uid="u", generation=3),
        spec=ReplicaSetSpec(replicas=replicas, selector=SELECTOR, template=template()),
    )


@pytest.mark.parametrize(
    ("replicas", "pods", "creates", "deletes"),
    [
        pytest.param(2, [], 2, [], id="nothing there"),
        pytest.param(None, [], 1, [], id="replicas default to one"),
        pytest.param(2, [pod("a"), pod("b")], 0, [], id="as many as wanted"),
        pytest.param(2, [pod("a"), pod("b", going=True)], 1, [], id="a pod on its way out does not count"),
        pytest.param(1, [pod("a", phase="Failed")], 1, [], id="a failed pod does not count"),
        pytest.param(
            1, [pod("a"), pod("b", ready=False)], 0, ["b"], id="the one that is not ready goes first"
        ),
        pytest.param(1, [pod("a"), pod("b", node="")], 0, ["b"], id="the unscheduled one goes first"),
        pytest.param(0, [pod("a"), pod("b")], 0, ["a", "b"], id="scaled to nothing"),
    ],
)
def test_a_replica_set_keeps_its_number(
    replicas: int | None, pods: list[Pod], creates: int, deletes: list[str]
) -> None:
    steps = plan_replicas(replicaset(replicas), pods, NOW)
    assert sum(isinstance(s, replica.CreatePod) for s in steps) == creates
    assert [s.pod.name for s in steps if isinstance(s, replica.DeletePod)] == deletes


def test_a_replica_set_at_rest_reports_once() -> None:
    pods = [pod("a"), pod("b")]
    (report,) = plan_replicas(replicaset(), pods, NOW)
    assert isinstance(report, replica.SetReplicaSetStatus)
    assert report.status.ready_replicas == 2
    assert report.status.observed_generation == 3
    assert (plan_replicas(structs.replace(replicaset(), status=report.status), pods, NOW)) == []


def deployment(replicas: int = 4, image: str = "a", strategy: DeploymentStrategy | None = None) -> Deployment:
    return Deployment(
        metadata=ObjectMeta(name="d", namespace="ns", uid="u"),
        spec=DeploymentSpec(
            replicas=replicas,
            selector=LabelSelector(match_labels={"app": "x"}),
            template=template(image),
            strategy=strategy or DeploymentStrategy(type="RollingUpdate"),
        ),
    )


def make_set(wanted: Deployment, replicas: int, ready: int, revision: str) -> ReplicaSet:
    held = deploy.new_set(wanted, [])
    return structs.replace(
        held,
        metadata=structs.replace(held.metadata, annotations={deploy.REVISION: revision}),
        spec=structs.replace(held.spec, replicas=replicas),
        status=ReplicaSetStatus(replicas=replicas, ready_replicas=ready, available_replicas=ready),
    )


def scales(steps: list[deploy.Step]) -> dict[str, int]:
    return {s.set.name: s.replicas for s in steps if isinstance(s, deploy.ScaleReplicaSet)}


def test_a_new_deployment_makes_one_set_with_all_replicas() -> None:
    (create, report) = plan_sets(deployment(), [], "now")
    assert isinstance(create, deploy.CreateReplicaSet)
    assert create.set.spec.replicas == 4
    assert create.set.metadata.annotations[deploy.REVISION] == "1"
    hash = create.set.metadata.labels[deploy.HASH_LABEL]
    assert create.set.name == f"d-{hash}"
    assert create.set.spec.selector is not None
    assert create.set.spec.selector.match_labels == {"app": "x", deploy.HASH_LABEL: hash}
    assert isinstance(report, deploy.SetDeploymentStatus)


def test_a_rolling_update_surges_by_a_quarter_and_ends() -> None:
    old, new = deployment(image="a"), deployment(image="b")
    first = make_set(old, 4, 4, "1")
    (create, *_) = plan_sets(new, [first], "now")
    assert isinstance(create, deploy.CreateReplicaSet)
    assert create.set.spec.replicas == 1
    assert create.set.metadata.annotations[deploy.REVISION] == "2"
    # The new pod is ready: the old set may fall to what keeps three ready.
    second = make_set(new, 1, 1, "2")
    assert scales(plan_sets(new, [first, second], "now")) == {first.name: 2}
    # All new ones are ready: nothing is left of the old set.
    steps = plan_sets(new, [make_set(old, 1, 1, "1"), make_set(new, 4, 4, "2")], "now")
    assert scales(steps) == {first.name: 0}


def test_surge_zero_and_unavailable_zero_still_moves() -> None:
    rolling = DeploymentStrategy(
        type="RollingUpdate", rolling_update=RollingUpdateDeployment(max_surge=0, max_unavailable=0)
    )
    old, new = deployment(1, "a", rolling), deployment(1, "b", rolling)
    steps = plan_sets(new, [make_set(old, 1, 1, "1"), make_set(new, 0, 0, "2")], "now")
    assert scales(steps) == {make_set(old, 1, 1, "1").name: 0}


def test_recreate_waits_until_the_old_pods_are_gone() -> None:
    recreate = DeploymentStrategy(type="Recreate")
    old, new = deployment(2, "a", recreate), deployment(2, "b", recreate)
    first, second = make_set(old, 2, 2, "1"), make_set(new, 0, 0, "2")
    assert scales(plan_sets(new, [first, second], "now")) == {first.name: 0}
    assert scales(plan_sets(new, [make_set(old, 0, 0, "1"), second], "now")) == {second.name: 2}


def test_going_back_to_an_old_template_reuses_its_set() -> None:
    wanted = deployment(image="a")
    back = make_set(wanted, 0, 0, "1")
    steps = plan_sets(wanted, [back, make_set(deployment(image="b"), 4, 4, "2")], "now")
    assert [s.revision for s in steps if isinstance(s, deploy.SetRevision)] == [3]


def test_a_deployment_at_rest_writes_nothing() -> None:
    wanted = deployment()
    held = make_set(wanted, 4, 4, "1")
    (report,) = plan_sets(wanted, [held], "now")
    assert isinstance(report, deploy.SetDeploymentStatus)
    assert (plan_sets(structs.replace(wanted, status=report.status), [held], "later")) == []


def node(name: str, *taints: Taint, **labels: str) -> Node:
    return Node(metadata=ObjectMeta(name=name, labels=labels), spec=NodeSpec(taints=taints))


def daemonset(image: str = "a") -> DaemonSet:
    return DaemonSet(
        metadata=ObjectMeta(name="d", namespace="ns", uid="u", generation=1),
        spec=DaemonSetSpec(selector=SELECTOR, template=template(image)),
    )


def on(wanted: DaemonSet, where: str, *, ready: bool = True) -> Pod:
    made = daemon.daemon_pod(wanted, where)
    return structs.replace(
        made,
        metadata=structs.replace(made.metadata, name=f"d-{where}"),
        spec=structs.replace(made.spec, node_name=where),
        status=PodStatus(phase="Running", conditions=READY if ready else ()),
    )


def test_every_eligible_node_gets_one_pod_tied_to_it() -> None:
    nodes = [node("a"), node("b", Taint(key="k", effect="NoSchedule")), node("c")]
    steps = list(daemon.plan(daemonset(), nodes, [on(daemonset(), "c")], NOW))
    (create,) = [s for s in steps if isinstance(s, daemon.CreatePod)]
    assert daemon.target_of(create.pod) == "a"


def test_a_cordoned_or_unready_node_keeps_its_daemon() -> None:
    cordoned = node("a", Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule"))
    steps = list(daemon.plan(daemonset(), [cordoned], [on(daemonset(), "a")], NOW))
    assert [s for s in steps if isinstance(s, daemon.DeletePod)] == []


def test_a_pod_on_a_node_that_left_is_deleted() -> None:
    steps = list(daemon.plan(daemonset(), [node("a")], [on(daemonset(), "a"), on(daemonset(), "gone")], NOW))
    assert [s.pod.name for s in steps if isinstance(s, daemon.DeletePod)] == ["d-gone"]


def test_an_update_replaces_one_ready_daemon_at_a_time() -> None:
    old, new = daemonset("a"), daemonset("b")
    steps = list(daemon.plan(new, [node("a"), node("b")], [on(old, "a"), on(old, "b")], NOW))
    assert len([s for s in steps if isinstance(s, daemon.DeletePod)]) == 1


def test_a_daemon_set_at_rest_reports_once() -> None:
    wanted, pods = daemonset(), [on(daemonset(), "a")]
    (report,) = daemon.plan(wanted, [node("a")], pods, NOW)
    assert isinstance(report, daemon.SetDaemonSetStatus)
    assert report.status.number_ready == report.status.desired_number_scheduled == 1
    assert list(daemon.plan(structs.replace(wanted, status=report.status), [node("a")], pods, NOW)) == []


# --- ready for long enough


def make_aged(pod: Pod, seconds: int) -> Pod:
    """Ready for that long."""
    since = (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = PodCondition(type="Ready", status="True", last_transition_time=since)
    return structs.replace(pod, status=structs.replace(pod.status, conditions=(ready,)))


def test_a_replica_is_available_when_it_was_ready_for_long_enough() -> None:
    wanted = replicaset()
    wanted = structs.replace(wanted, spec=structs.replace(wanted.spec, min_ready_seconds=30))
    report, wait = plan_replicas(wanted, [make_aged(pod("a"), 40), make_aged(pod("b"), 10)], NOW)
    assert isinstance(report, replica.SetReplicaSetStatus)
    assert (report.status.ready_replicas, report.status.available_replicas) == (2, 1)
    assert wait == Wait(WaitReason.MIN_READY_SECONDS, seconds=20.0)


def test_an_update_waits_until_the_new_pods_are_available() -> None:
    old, new = deployment(image="a"), deployment(image="b")
    first, second = make_set(old, 3, 3, "1"), make_set(new, 2, 2, "2")
    young = structs.replace(second, status=structs.replace(second.status, available_replicas=0))
    assert scales(plan_sets(new, [first, young], "now")) == {}
    assert first.name in scales(plan_sets(new, [first, second], "now"))


def test_a_daemon_is_available_when_it_was_ready_for_long_enough() -> None:
    wanted = daemonset("b")
    wanted = structs.replace(wanted, spec=structs.replace(wanted.spec, min_ready_seconds=30))
    nodes = [node("a"), node("b")]
    updated, outdated = make_aged(on(wanted, "a"), 10), make_aged(on(daemonset("a"), "b"), 99)
    report, wait = daemon.plan(wanted, nodes, [updated, outdated], NOW)  # nothing is replaced meanwhile
    assert isinstance(report, daemon.SetDaemonSetStatus)
    assert (report.status.number_ready, report.status.number_available) == (2, 1)
    assert wait == Wait(WaitReason.MIN_READY_SECONDS, seconds=20.0)


# --- rows that the journeys above do not take


def mark_deleted(wanted: Any) -> Any:
    return structs.replace(wanted, metadata=structs.replace(wanted.metadata, deletion_timestamp="now"))


def test_nothing_is_made_for_what_is_deleted() -> None:
    assert not any(
        isinstance(s, replica.CreatePod) for s in plan_replicas(mark_deleted(replicaset()), [], NOW)
    )
    assert not any(
        isinstance(s, daemon.CreatePod) for s in daemon.plan(mark_deleted(daemonset()), [node("a")], [], NOW)
    )
    assert not any(
        isinstance(s, deploy.CreateReplicaSet) for s in plan_sets(mark_deleted(deployment()), [], "now")
    )


def test_a_paused_deployment_does_not_move() -> None:
    wanted = deployment()
    paused = structs.replace(wanted, spec=structs.replace(wanted.spec, paused=True))
    assert scales(plan_sets(paused, [make_set(wanted, 1, 1, "1")], "now")) == {}


def test_daemons_go_where_their_selector_and_network_allow() -> None:
    wanted = daemonset()
    spec = structs.replace(wanted.spec.template.spec, node_selector={"disk": "ssd"}, host_network=True)
    selective = structs.replace(
        wanted,
        spec=structs.replace(wanted.spec, template=structs.replace(wanted.spec.template, spec=spec)),
    )
    assert not daemon.is_eligible(selective, node("a"))
    unreachable = Taint(key="node.kubernetes.io/network-unavailable", effect="NoSchedule")
    assert daemon.is_eligible(selective, node("a", unreachable, disk="ssd"))
    assert not daemon.is_eligible(wanted, node("a", unreachable))


def test_daemons_are_replaced_only_when_deleted_or_at_once_when_not_ready() -> None:
    old, new = daemonset("a"), daemonset("b")
    by_hand = structs.replace(
        new, spec=structs.replace(new.spec, update_strategy=DaemonSetUpdateStrategy(type="OnDelete"))
    )
    assert not any(
        isinstance(s, daemon.DeletePod) for s in daemon.plan(by_hand, [node("a")], [on(old, "a")], NOW)
    )
    pods = [on(old, "a", ready=False), on(old, "b", ready=False)]
    steps = daemon.plan(new, [node("a"), node("b")], pods, NOW)
    assert len([s for s in steps if isinstance(s, daemon.DeletePod)]) == 2


# --- owners


def labelled(pod: Pod, **labels: str) -> Pod:
    return structs.replace(pod, metadata=structs.replace(pod.metadata, labels=labels))


def test_a_set_adopts_matching_pods_and_makes_fewer() -> None:
    orphans = [
        pod("b"),
        pod("gone", going=True),
        pod("done", phase="Failed"),
        labelled(pod("other"), app="y"),
    ]
    steps = plan_replicas(replicaset(3), [pod("a")], NOW, orphans=orphans)
    assert [s.orphan.name for s in steps if isinstance(s, AdoptObject)] == ["b"]
    assert sum(isinstance(s, replica.CreatePod) for s in steps) == 1


def test_a_set_releases_pods_that_it_no_longer_matches_and_replaces_them() -> None:
    steps = plan_replicas(replicaset(2), [pod("a"), labelled(pod("b"), app="debug")], NOW)
    assert [s.object.name for s in steps if isinstance(s, ReleaseObject)] == ["b"]
    assert sum(isinstance(s, replica.CreatePod) for s in steps) == 1


def test_a_set_that_is_being_deleted_changes_no_owners() -> None:
    strays = [labelled(pod("b"), app="debug")]
    steps = plan_replicas(mark_deleted(replicaset()), strays, NOW, orphans=[pod("c")])
    assert not any(isinstance(s, (AdoptObject, ReleaseObject)) for s in steps)


def test_a_replication_controller_matches_by_its_plain_selector() -> None:
    wanted = ReplicationController(
        metadata=ObjectMeta(name="s", namespace="d", uid="u"),
        spec=ReplicationControllerSpec(replicas=1, selector={"app": "x"}, template=template()),
    )
    steps = plan_replicas(wanted, [], NOW, orphans=[labelled(pod("a"), app="y"), pod("b")])
    assert [s.orphan.name for s in steps if isinstance(s, AdoptObject)] == ["b"]


def test_a_deployment_adopts_the_set_of_its_template() -> None:
    wanted = deployment(1)
    steps = plan_sets(wanted, [], "now", orphans=[make_set(wanted, 1, 1, "1")])
    assert isinstance(steps[0], AdoptObject)
    assert not any(isinstance(s, deploy.CreateReplicaSet) for s in steps)


def test_a_daemon_set_adopts_the_pod_of_a_node() -> None:
    orphan = on(daemonset(), "a")
    steps = list(daemon.plan(daemonset(), [node("a")], [], NOW, [orphan]))
    assert [s.orphan for s in steps if isinstance(s, AdoptObject)] == [orphan]
    assert not any(isinstance(s, daemon.CreatePod) for s in steps)


# --- what cannot be created


def test_pods_are_created_in_growing_groups_after_deletions_and_before_the_status() -> None:
    steps = plan_replicas(replicaset(11), [labelled(pod("b"), app="debug")], NOW)
    groups = [list(group) for group in workload_batches(steps)]
    assert [[type(s).__name__ for s in group] for group in groups] == [
        ["ReleaseObject"],
        [],
        ["CreatePod"],
        ["CreatePod"] * 2,
        ["CreatePod"] * 4,
        ["CreatePod"] * 4,
        ["SetReplicaSetStatus"],
        [],
    ]


def test_a_refused_pod_is_told_in_the_status_and_tried_again_later() -> None:
    report, wait = plan_replicas(replicaset(2), [], NOW, failure="no room")
    (condition,) = report.status.conditions
    assert (condition.type, condition.status, condition.reason, condition.message) == (
        "ReplicaFailure",
        "True",
        "FailedCreate",
        "no room",
    )
    assert (wait.backoff, wait.message) == (True, "no room")
    # The next attempt keeps the condition until it succeeds.
    failed = structs.replace(replicaset(2), status=report.status)
    (still,) = plan_replicas(failed, [], NOW, failure="still no room")
    assert isinstance(still, Wait)
    steps = plan_replicas(failed, [], NOW)
    assert [s.status.conditions for s in steps if isinstance(s, replica.SetReplicaSetStatus)] == [()]


def test_a_pod_that_cannot_be_deleted_has_its_own_reason() -> None:
    report, _ = plan_replicas(replicaset(0), [pod("a")], NOW, failure="refused")
    assert [c.reason for c in report.status.conditions] == ["FailedDelete"]


def test_a_deployment_shows_the_failure_of_its_set() -> None:
    wanted = deployment(2)
    refused = ReplicaSetCondition(
        type="ReplicaFailure", status="True", reason="FailedCreate", message="no", last_transition_time="then"
    )
    other = structs.replace(refused, type="Other")
    held = make_set(wanted, 2, 0, "1")
    held = structs.replace(held, status=structs.replace(held.status, conditions=(other, refused)))
    (report,) = [s for s in plan_sets(wanted, [held], "now") if isinstance(s, deploy.SetDeploymentStatus)]
    shown = report.status.conditions[-1]
    assert (shown.type, shown.reason, shown.message, shown.last_update_time) == (
        "ReplicaFailure",
        "FailedCreate",
        "no",
        "then",
    )


def test_a_set_that_cannot_be_created_is_told_in_the_status() -> None:
    report, wait = plan_sets(deployment(2), [], "now", failure="no room")
    (progress,) = [c for c in report.status.conditions if c.type == "Progressing"]
    assert (progress.status, progress.reason, progress.message) == (
        "False",
        "ReplicaSetCreateError",
        "no room",
    )
    assert wait.backoff
    failed = structs.replace(deployment(2), status=report.status)
    assert plan_sets(failed, [], "later", failure="no room") == [wait]


def test_a_set_of_another_owner_or_template_is_not_the_same() -> None:
    made = deploy.new_set(deployment(), [])
    assert deploy.is_same_set(make_set(deployment(), 3, 0, "7"), made)
    assert not deploy.is_same_set(deploy.new_set(deployment(image="b"), []), made)
    free = structs.replace(made, metadata=structs.replace(made.metadata, owner_references=()))
    assert not deploy.is_same_set(free, made)
