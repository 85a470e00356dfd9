"""Restart policies, phases and statuses."""

from __future__ import annotations

import pytest
from msgspec import structs

from volplane.api.core import Container, Pod, PodSpec, ResourceRequirements, VolumeMount
from volplane.api.meta import ObjectMeta
from volplane.node.pods import plan
from volplane.node.pods.plan import ContainerFinished, CrashLoopBackoff, StartAttempt, WatchAttempt
from volplane.node.pods.records import ContainerAttempt, ContainerRecord, ContainerWaiting
from volplane.node.pods.status import PodStatusInputs, make_pod_status, qos_class
from volplane.rules.waits import Wait, WaitReason

NOW = "2026-01-02T03:04:05Z"


def ran(exit_code: int = 0, number: int = 0) -> ContainerAttempt:
    return ContainerAttempt(
        number, f"process://u_c_{number}", exit_code=exit_code, started_at=NOW, finished_at=NOW
    )


RUNNING = ContainerAttempt(0, "process://u_c_0", running=True, started_at=NOW)
UP = ContainerRecord(current=RUNNING, ready=True)


def restart(seconds: float, delay: str) -> Wait:
    message = f"back-off {delay} restarting failed container"
    return Wait(WaitReason.CONTAINER_RESTART, seconds=seconds, message=message)


STEPS = {
    "a container that never ran starts": ("Always", None, 0.0, 0.0, StartAttempt(0)),
    "a running one is watched": ("Always", RUNNING, 0.0, 0.0, WatchAttempt()),
    "Always restarts a success at once": ("Always", ran(), 0.0, 0.0, StartAttempt(1)),
    "OnFailure leaves a success": ("OnFailure", ran(), 0.0, 0.0, ContainerFinished(True)),
    "OnFailure restarts a failure": ("OnFailure", ran(1), 0.0, 0.0, StartAttempt(1)),
    "Never leaves a failure": ("Never", ran(1), 0.0, 0.0, ContainerFinished(False)),
    "the second crash waits": (
        "Always", ran(1, 1), 10.0, 4.0, restart(6.0, "10s"),
    ),
    "the wait ends": ("Always", ran(1, 1), 10.0, 10.0, StartAttempt(2)),
    "one that the node interrupted starts again": (
        "Never", structs.replace(ran(), interrupted=True), 0.0, 0.0, StartAttempt(1),
    ),
    "long waits are spelled as minutes": (
        "Always", ran(1, 5), 160.0, 0.0, restart(160.0, "2m40s"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("policy", "attempt", "delay", "ended_for", "step"), STEPS.values(), ids=STEPS)
def test_next_step(
    policy: str, attempt: ContainerAttempt | None, delay: float, ended_for: float, step: object
) -> None:
    assert plan.plan(policy, attempt, CrashLoopBackoff(delay), ended_for) == step


RESTARTABLE = Container(name="s", restart_policy="Always")
POLICIES = {
    "the pod's": (PodSpec(restart_policy="Never"), Container(name="c"), False, "Never"),
    "the default": (PodSpec(), Container(name="c"), False, "Always"),
    "an init container runs once": (PodSpec(), Container(name="c"), True, "OnFailure"),
    "an init container is not tried again": (
        PodSpec(restart_policy="Never"),
        Container(name="c"),
        True,
        "Never",
    ),
    "a sidecar": (PodSpec(restart_policy="Never"), RESTARTABLE, True, "Always"),
}


@pytest.mark.parametrize(("spec", "container", "init", "policy"), POLICIES.values(), ids=POLICIES)
def test_the_restart_policy_of_a_container(
    spec: PodSpec, container: Container, init: bool, policy: str
) -> None:
    assert plan.policy_of(Pod(spec=spec), container, init=init) == policy


def test_backoff_grows_and_is_forgiven() -> None:
    delays, backoff = [], CrashLoopBackoff()
    for _ in range(7):
        delays.append(backoff.delay)
        backoff = backoff.after_run(1.0).after_restart()
    assert delays == [0, 10, 20, 40, 80, 160, 300]
    assert backoff.after_run(600.0).delay == 0


def pod(
    policy: str = "Always", *, init: tuple[Container, ...] = (), containers: tuple[str, ...] = ("c",)
) -> Pod:
    spec = PodSpec(
        restart_policy=policy,
        init_containers=init,
        containers=tuple(Container(name=name, image="busybox") for name in containers),
    )
    return Pod(metadata=ObjectMeta(name="p", namespace="default", uid="u", generation=1), spec=spec)


INIT = (Container(name="i"),)
SIDECAR = (Container(name="s", restart_policy="Always"),)
PHASES = {
    "nothing yet": (pod(), {}, False, "Pending"),
    "running": (pod(), {"c": UP}, False, "Running"),
    "one of two": (pod(containers=("c", "d")), {"c": UP}, False, "Pending"),
    "init runs": (pod(init=INIT), {"i": UP}, False, "Pending"),
    "init failed for good": (pod("Never", init=INIT), {"i": ContainerRecord(ran(1))}, False, "Failed"),
    "init failed, again soon": (pod(init=INIT), {"i": ContainerRecord(ran(1))}, False, "Pending"),
    "init done": (pod(init=INIT), {"i": ContainerRecord(ran()), "c": UP}, False, "Running"),
    "succeeded": (pod("Never"), {"c": ContainerRecord(ran())}, False, "Succeeded"),
    "failed": (pod("Never"), {"c": ContainerRecord(ran(3))}, False, "Failed"),
    "failed, to be restarted": (pod("OnFailure"), {"c": ContainerRecord(ran(3))}, False, "Running"),
    "crash loop": (
        pod(),
        {"c": ContainerRecord(ran(3), waiting=ContainerWaiting("CrashLoopBackOff"))},
        False,
        "Running",
    ),
    "ended well": (pod(), {"c": ContainerRecord(ran())}, True, "Succeeded"),
    "killed": (pod(), {"c": ContainerRecord(ran(137))}, True, "Failed"),
    "ended with a sidecar still there": (
        pod(init=SIDECAR),
        {"c": ContainerRecord(ran()), "s": UP},
        True,
        "Running",
    ),
    "deleted before it began": (pod(), {}, True, "Pending"),
}


@pytest.mark.parametrize(("seen", "records", "ended", "phase"), PHASES.values(), ids=PHASES)
def test_phase(seen: Pod, records: dict[str, ContainerRecord], ended: bool, phase: str) -> None:
    assert plan.phase(seen, records, ended=ended) == phase


def conditions(seen: Pod, facts: PodStatusInputs) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in make_pod_status(seen, facts, NOW).conditions}


def test_a_new_pod_is_creating_its_containers() -> None:
    status = make_pod_status(pod(), PodStatusInputs(host_ip="127.0.0.1", started_at=NOW), NOW)
    waiting = status.container_statuses[0].state.waiting
    assert status.phase == "Pending"
    assert waiting is not None
    assert waiting.reason == "ContainerCreating"
    assert status.container_statuses[0].started is False
    assert status.qos_class == "BestEffort"


def test_a_running_pod_is_ready() -> None:
    facts = PodStatusInputs(records={"c": UP}, volumes_ready=True)
    assert conditions(pod(), facts) == {
        "PodReadyToStartContainers": ("True", ""),
        "Initialized": ("True", ""),
        "Ready": ("True", ""),
        "ContainersReady": ("True", ""),
        "PodScheduled": ("True", ""),
    }


def test_init_containers_hold_the_others_back() -> None:
    status = make_pod_status(pod(init=INIT), PodStatusInputs(records={"i": UP}, volumes_ready=True), NOW)
    waiting = status.container_statuses[0].state.waiting
    assert waiting is not None
    assert waiting.reason == "PodInitializing"
    assert conditions(pod(init=INIT), PodStatusInputs(records={"i": UP}))["Initialized"] == (
        "False",
        "ContainersNotInitialized",
    )


def test_a_finished_pod_says_so() -> None:
    found = conditions(pod("Never"), PodStatusInputs(records={"c": ContainerRecord(ran())}, ended=True))
    assert found["Ready"] == ("False", "PodCompleted")
    assert found["PodReadyToStartContainers"] == ("False", "")


def test_a_crash_loop_shows_the_last_end() -> None:
    record = ContainerRecord(ran(3, 4), waiting=ContainerWaiting("CrashLoopBackOff", "back-off 40s"))
    (shown,) = make_pod_status(pod(), PodStatusInputs(records={"c": record}), NOW).container_statuses
    assert shown.restart_count == 4
    assert shown.state.waiting is not None
    assert shown.state.waiting.reason == "CrashLoopBackOff"
    assert shown.last_state.terminated is not None
    assert shown.last_state.terminated.exit_code == 3
    assert shown.last_state.terminated.reason == "Error"


RECURSIVE = {
    "as asked before the first start": (None, frozenset[str](), "Enabled"),
    "not before the first start, if the runtime lacks it": (None, frozenset({"c"}), "Disabled"),
    "as asked where no runtime tells what it made": (RUNNING, frozenset({"c"}), "Enabled"),
    "what the runtime made": (
        structs.replace(RUNNING, recursive_mounts=frozenset({"/d"})), frozenset({"c"}), "Enabled",
    ),
    "not what the runtime did not make": (
        structs.replace(RUNNING, recursive_mounts=frozenset({"/e"})), frozenset[str](), "Disabled",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("attempt", "lacking", "shown"), RECURSIVE.values(), ids=RECURSIVE)
def test_recursive_read_only_is_shown(
    attempt: ContainerAttempt | None, lacking: frozenset[str], shown: str
) -> None:
    mount = VolumeMount(name="data", mount_path="/d", read_only=True, recursive_read_only="IfPossible")
    asked = Pod(spec=PodSpec(containers=(Container(name="c", volume_mounts=(mount,)),)))
    facts = PodStatusInputs(records={"c": ContainerRecord(attempt)}, no_recursive_readonly=lacking)
    (found,) = make_pod_status(asked, facts, NOW).container_statuses
    assert [m.recursive_read_only for m in found.volume_mounts] == [shown]


def test_transition_times_move_only_with_the_status() -> None:
    import msgspec

    first = make_pod_status(pod(), PodStatusInputs(), NOW)
    known = msgspec.structs.replace(pod(), status=first)
    later = make_pod_status(
        known, PodStatusInputs(records={"c": UP}, volumes_ready=True), "2026-01-02T04:00:00Z"
    )
    times = {c.type: c.last_transition_time for c in later.conditions}
    assert times["PodScheduled"] == NOW
    assert times["Ready"] == "2026-01-02T04:00:00Z"


@pytest.mark.parametrize(
    ("requests", "limits", "quality"),
    [
        ({}, {}, "BestEffort"),
        ({"cpu": "1"}, {}, "Burstable"),
        ({"cpu": "1", "memory": "1Gi"}, {"cpu": "1000m", "memory": "1024Mi"}, "Guaranteed"),
        ({}, {"cpu": "1", "memory": "1Gi"}, "Guaranteed"),
        ({}, {"cpu": "1"}, "Burstable"),
    ],
)
def test_quality_of_service(requests: dict[str, str], limits: dict[str, str], quality: str) -> None:
    container = Container(name="c", resources=ResourceRequirements(limits=limits, requests=requests))
    assert qos_class(Pod(spec=PodSpec(containers=(container,)))) == quality
