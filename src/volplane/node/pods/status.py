"""Make a pod's status from the records of its containers. Pure.

The attach/detach controller releases a deleted pod's volumes when no container status is running, so a
status must never report an exit before it has happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from volplane.api import quantity
from volplane.api.core import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    HostIP,
    Pod,
    PodCondition,
    PodIP,
    PodStatus,
    VolumeMount,
    VolumeMountStatus,
)
from volplane.node.pods import plan
from volplane.node.pods.records import (
    NO_RECORD,
    ContainerAttempt,
    ContainerRecords,
    ContainerWaiting,
    ephemeral_containers,
    is_sidecar,
)

CREATING = ContainerWaiting("ContainerCreating")
INITIALIZING = ContainerWaiting("PodInitializing")


class PodStatusInputs(Struct, frozen=True):
    """What a pod's status is made from, besides the pod itself."""

    records: ContainerRecords = {}
    started_at: str = ""
    volumes_ready: bool = False
    host_ip: str = ""
    pod_ip: str = ""
    ended: bool = False
    evicted: bool = False
    reason: str = ""  # of a pod that failed as a whole (DeadlineExceeded, …)
    message: str = ""
    rejected: bool = False  # the node rejected the pod: no container has a state
    no_recursive_readonly: frozenset[str] = frozenset()  # containers whose runtime lacks recursiveReadOnly


def make_pod_status(
    pod: Pod, facts: PodStatusInputs, now: str, before: Sequence[PodCondition] | None = None
) -> PodStatus:
    """The pod's status. `before`: the conditions last written, which the cached pod may not show yet."""
    if facts.rejected:
        return _rejected_status(pod, facts)
    phase = "Failed" if facts.reason else plan.phase(pod, facts.records, ended=facts.ended)
    initialized = _is_initialized(pod, facts.records)
    conditions = _conditions(pod, facts, phase, now, pod.status.conditions if before is None else before)
    return PodStatus(
        observed_generation=pod.metadata.generation,
        phase=phase,
        conditions=conditions,
        message=facts.message,
        reason=facts.reason,
        host_ip=facts.host_ip,
        host_ips=(HostIP(facts.host_ip),) if facts.host_ip else (),
        pod_ip=facts.pod_ip,
        pod_ips=(PodIP(facts.pod_ip),) if facts.pod_ip else (),
        start_time=facts.started_at or None,
        init_container_statuses=tuple(
            _container(c, facts, INITIALIZING, init=True) for c in pod.spec.init_containers
        ),
        container_statuses=tuple(
            _container(c, facts, CREATING if initialized else INITIALIZING, init=False)
            for c in pod.spec.containers
        ),
        ephemeral_container_statuses=tuple(
            msgspec.structs.replace(_container(c, facts, CREATING, init=False), ready=False)
            for c in ephemeral_containers(pod)
        ),
        qos_class=pod.status.qos_class or qos_class(pod),
    )


def _rejected_status(pod: Pod, facts: PodStatusInputs) -> PodStatus:
    """The status of a pod that the node rejected, as upstream's kubelet writes it."""
    return PodStatus(
        observed_generation=pod.metadata.generation,
        phase="Failed",
        conditions=pod.status.conditions,
        message=facts.message,
        reason=facts.reason,
        start_time=facts.started_at or None,
        qos_class=pod.status.qos_class or qos_class(pod),
    )


# --- containers


def _container(
    container: Container, facts: PodStatusInputs, idle: ContainerWaiting, *, init: bool
) -> ContainerStatus:
    record = facts.records.get(container.name, NO_RECORD)
    current = record.current
    # A container that the node restarts is waiting, not terminated: the API does not let a terminated one
    # run again.
    again = current is None or current.interrupted or current.unhealthy
    waiting = record.waiting or (idle if again else None)
    last = current if waiting is not None else record.previous
    done = init and not is_sidecar(container) and current is not None and current.has_succeeded
    return ContainerStatus(
        name=container.name,
        state=_state(current, waiting),
        last_state=ContainerState(terminated=_make_terminated_state(last))
        if last and not last.running
        else ContainerState(),
        ready=record.ready or done,
        restart_count=current.number if current else 0,
        image=(current.image if current else "") or container.image,
        image_id=(current.image_id or container.image) if current else "",
        container_id=current.id if current else "",
        started=record.running and record.started,
        volume_mounts=tuple(
            VolumeMountStatus(
                m.name,
                m.mount_path,
                m.read_only,
                _recursive(m, current, possible=container.name not in facts.no_recursive_readonly),
            )
            for m in container.volume_mounts
        ),
        stop_signal=container.lifecycle.stop_signal if container.lifecycle else None,
    )


def _recursive(mount: VolumeMount, attempt: ContainerAttempt | None, *, possible: bool) -> str | None:
    """recursiveReadOnly in the status: what was done, or without an attempt what will be."""
    if not mount.read_only:
        return None
    if mount.recursive_read_only not in ("Enabled", "IfPossible"):
        return "Disabled"
    if attempt is not None:
        possible = attempt.recursive_mounts is None or mount.mount_path in attempt.recursive_mounts
    return "Enabled" if possible else "Disabled"


def _state(current: ContainerAttempt | None, waiting: ContainerWaiting | None) -> ContainerState:
    if waiting is not None:
        return ContainerState(waiting=ContainerStateWaiting(waiting.reason, waiting.message))
    assert current is not None
    if current.running:
        return ContainerState(running=ContainerStateRunning(current.started_at))
    return ContainerState(terminated=_make_terminated_state(current))


def _make_terminated_state(attempt: ContainerAttempt) -> ContainerStateTerminated:
    return ContainerStateTerminated(
        exit_code=attempt.exit_code,
        reason=attempt.reason or ("Completed" if attempt.exit_code == 0 else "Error"),
        message=attempt.message,
        started_at=attempt.started_at,
        finished_at=attempt.finished_at,
        container_id=attempt.id,
    )


# --- conditions


def _is_initialized(pod: Pod, records: ContainerRecords) -> bool:
    return not _incomplete(pod, records)


def _incomplete(pod: Pod, records: ContainerRecords) -> list[str]:
    names = []
    for container in pod.spec.init_containers:
        record = records.get(container.name, NO_RECORD)
        if is_sidecar(container):
            done = (record.running and record.started) or record.has_finished
        else:
            done = record.current is not None and record.current.has_succeeded
        if not done:
            names.append(container.name)
    return names


def _conditions(
    pod: Pod, facts: PodStatusInputs, phase: str, now: str, before: Sequence[PodCondition]
) -> tuple[PodCondition, ...]:
    ready = _containers_ready(pod, facts.records, phase)
    conditions = [
        PodCondition("PodReadyToStartContainers", status=_truth(_is_ready_to_start(facts))),
        _initialized_condition(pod, facts.records, phase),
        _ready_condition(pod, ready),
        ready,
        PodCondition("PodScheduled", status="True"),
    ]
    if facts.evicted:
        why = facts.message
        conditions.append(
            PodCondition("DisruptionTarget", status="True", reason="TerminationByKubelet", message=why)
        )
    return tuple(_with_transition_time(c, pod.metadata.generation, before, now) for c in conditions)


def _is_ready_to_start(facts: PodStatusInputs) -> bool:
    """Whether volumes and sandbox are ready; False again once the pod has stopped."""
    if facts.ended or facts.reason:
        return any(r.running for r in facts.records.values())
    return facts.volumes_ready


def _initialized_condition(pod: Pod, records: ContainerRecords, phase: str) -> PodCondition:
    incomplete = _incomplete(pod, records)
    if phase == "Succeeded":
        return PodCondition("Initialized", status="True", reason="PodCompleted")
    if not incomplete:
        return PodCondition("Initialized", status="True")
    message = f"containers with incomplete status: {_names(incomplete)}"
    return PodCondition("Initialized", status="False", reason="ContainersNotInitialized", message=message)


def _containers_ready(pod: Pod, records: ContainerRecords, phase: str) -> PodCondition:
    reason = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase)
    if reason:
        return PodCondition("ContainersReady", status="False", reason=reason)
    counted = (*(c for c in pod.spec.init_containers if is_sidecar(c)), *pod.spec.containers)
    unready = [c.name for c in counted if not records.get(c.name, NO_RECORD).ready]
    if not unready:
        return PodCondition("ContainersReady", status="True")
    message = f"containers with unready status: {_names(unready)}"
    return PodCondition("ContainersReady", status="False", reason="ContainersNotReady", message=message)


def _ready_condition(pod: Pod, containers: PodCondition) -> PodCondition:
    """The condition Ready: the containers are ready and all readiness gates are True."""
    ready = msgspec.structs.replace(containers, type="Ready")
    if containers.status != "True":
        return ready
    true_types = {c.type for c in pod.status.conditions if c.status == "True"}
    closed = [g.condition_type for g in pod.spec.readiness_gates if g.condition_type not in true_types]
    if not closed:
        return ready
    message = ", ".join(f'the status of pod readiness gate "{name}" is not "True"' for name in closed)
    return PodCondition("Ready", status="False", reason="ReadinessGatesNotReady", message=message)


def _with_transition_time(
    condition: PodCondition, generation: int, before: Sequence[PodCondition], now: str
) -> PodCondition:
    old = next((c for c in before if c.type == condition.type), None)
    since = old.last_transition_time if old is not None and old.status == condition.status else now
    return msgspec.structs.replace(
        condition,
        last_transition_time=since or now,
        observed_generation=generation,
    )


def _truth(value: bool) -> str:
    return "True" if value else "False"


def _names(names: Iterable[str]) -> str:
    return "[" + " ".join(names) + "]"


# --- quality of service


def qos_class(pod: Pod) -> str:
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    if not any(_amounts(c.resources.requests) or _amounts(c.resources.limits) for c in containers):
        return "BestEffort"
    return "Guaranteed" if all(map(_is_guaranteed, containers)) else "Burstable"


def _is_guaranteed(container: Container) -> bool:
    limits, requests = container.resources.limits, container.resources.requests
    return all(
        name in limits and quantity.milli(requests.get(name, limits[name])) == quantity.milli(limits[name])
        for name in ("cpu", "memory")
    )


def _amounts(resources: object) -> Sequence[str]:
    assert isinstance(resources, dict)
    return [name for name in ("cpu", "memory") if quantity.milli(resources.get(name, "0"))]
