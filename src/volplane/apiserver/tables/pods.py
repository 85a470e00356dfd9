"""Table cells of pods: STATUS combines phase, reasons, container states and deletion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from volplane.api.core import ContainerStateTerminated, ContainerStatus, Pod, PodIP
from volplane.apiserver.tables.cells import NONE, age

COMPLETED: Mapping[str, str] = {
    "Succeeded": "The pod has completed successfully.",
    "Failed": "The pod failed.",
}


class _PodSummary(Struct):
    """Status, ready containers and restarts of a pod."""

    reason: str
    ready: int = 0
    restarts: int = 0
    last_restart: str = ""
    initializing: bool = False

    def add_restarts(self, status: ContainerStatus) -> None:
        self.restarts += status.restart_count
        ended = status.last_state.terminated
        if ended is not None and (ended.finished_at or "") > self.last_restart:
            self.last_restart = ended.finished_at or ""


def pod_summary(pod: Pod, now: datetime) -> list[str]:
    """READY, STATUS and RESTARTS."""
    total = _summarize(pod)
    count = len(pod.spec.containers) + len(_sidecars(pod))
    restarts = str(total.restarts)
    if total.restarts and total.last_restart:
        restarts += f" ({age(total.last_restart, now)} ago)"
    return [f"{total.ready}/{count}", total.reason, restarts]


def _summarize(pod: Pod) -> _PodSummary:
    total = _PodSummary(pod.status.reason or pod.status.phase)
    if any(c.type == "PodScheduled" and c.reason == "SchedulingGated" for c in pod.status.conditions):
        total.reason = "SchedulingGated"
    _initialize(pod, total)
    if not total.initializing or _has_condition(pod, "Initialized"):
        _run(pod, total)
    if pod.is_deleting and pod.status.reason == "NodeLost":
        total.reason = "Unknown"
    elif pod.is_deleting and pod.status.phase not in COMPLETED:
        total.reason = "Terminating"
    return total


def _sidecars(pod: Pod) -> set[str]:
    return {c.name for c in pod.spec.init_containers if c.restart_policy == "Always"}


def _initialize(pod: Pod, total: _PodSummary) -> None:
    """The first init container that has not completed gives the reason."""
    sidecars = _sidecars(pod)
    for at, status in enumerate(pod.status.init_container_statuses):
        total.add_restarts(status)
        state = status.state
        if state.terminated is not None and state.terminated.exit_code == 0:
            continue
        if status.name in sidecars and status.started:
            total.ready += status.ready
            continue
        total.initializing = True
        if state.terminated is not None:
            total.reason = f"Init:{_termination_reason(state.terminated)}"
        elif state.waiting is not None and state.waiting.reason not in ("", "PodInitializing"):
            total.reason = f"Init:{state.waiting.reason}"
        else:
            total.reason = f"Init:{at}/{len(pod.spec.init_containers)}"
        return


def _termination_reason(ended: ContainerStateTerminated) -> str:
    if ended.reason:
        return ended.reason
    return f"Signal:{ended.signal}" if ended.signal else f"ExitCode:{ended.exit_code}"


def _run(pod: Pod, total: _PodSummary) -> None:
    sidecars = _sidecars(pod)
    # Once the pod runs, restarts of init containers no longer count, except those of sidecars.
    total.restarts, total.last_restart = 0, ""
    for status in pod.status.init_container_statuses:
        if status.name in sidecars:
            total.add_restarts(status)
    failed, running = "", False
    for status in reversed(pod.status.container_statuses):
        total.add_restarts(status)
        state = status.state
        if state.waiting is not None and state.waiting.reason:
            total.reason = state.waiting.reason
        elif state.terminated is not None:
            total.reason = _termination_reason(state.terminated)
            failed = total.reason if state.terminated.exit_code else failed
        elif status.ready and state.running is not None:
            running = True
            total.ready += 1
    if total.reason == "Completed":
        total.reason = _completed_reason(pod, running, failed)


def _completed_reason(pod: Pod, running: bool, failed: str) -> str:
    """The status when a container has completed while others may still run."""
    if running and _has_condition(pod, "Ready"):
        return "Running"
    return failed or ("NotReady" if running else "Completed")


def _has_condition(pod: Pod, condition: str) -> bool:
    return any(c.type == condition and c.status == "True" for c in pod.status.conditions)


def first_ip(ips: Sequence[PodIP]) -> str:
    return next((ip.ip for ip in ips), "") or NONE


def readiness_gates(pod: Pod) -> str:
    gates = pod.spec.readiness_gates
    if not gates:
        return NONE
    return f"{sum(_has_condition(pod, gate.condition_type) for gate in gates)}/{len(gates)}"


def pod_conditions(pod: Pod) -> list[dict[str, str]]:
    phase = pod.status.phase
    if phase not in COMPLETED:
        return []
    return [{"type": "Completed", "status": "True", "reason": phase, "message": COMPLETED[phase]}]
