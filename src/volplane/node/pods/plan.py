"""The next step of one container, and the phase of its pod. Pure.

Restart policies, crash-loop back-off and the pod's phase are functions of the records. A container's first
restart is immediate; each further one waits twice as long, until the container has run for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from volplane.api.core import Container, Pod
from volplane.node.pods.records import (
    NO_RECORD,
    ContainerAttempt,
    ContainerRecord,
    ContainerRecords,
    init_containers,
    is_sidecar,
    sidecars,
)
from volplane.rules.waits import Wait, WaitReason

FIRST_BACKOFF = 10.0
MAX_BACKOFF = 300.0
BACKOFF_RESET_AFTER = 600.0  # seconds of running that reset the back-off


class StartAttempt(Struct, frozen=True):
    number: int


class WatchAttempt(Struct, frozen=True):
    """It runs: wait for its exit."""


class ContainerFinished(Struct, frozen=True):
    """It has exited and is not restarted."""

    succeeded: bool


class CrashLoopBackoff(Struct, frozen=True):
    """How long the next restart waits after the last exit; 0 for the first restart."""

    delay: float = 0.0
    longest: float = MAX_BACKOFF

    def after_restart(self) -> CrashLoopBackoff:
        return CrashLoopBackoff(min(self.delay * 2 or FIRST_BACKOFF, self.longest), self.longest)

    def after_run(self, seconds: float) -> CrashLoopBackoff:
        return CrashLoopBackoff(0.0, self.longest) if seconds >= BACKOFF_RESET_AFTER else self


def plan(
    policy: str, attempt: ContainerAttempt | None, backoff: CrashLoopBackoff, ended_for: float
) -> StartAttempt | WatchAttempt | ContainerFinished | Wait:
    """The next step. `ended_for`: seconds since the attempt exited."""
    if attempt is None:
        return StartAttempt(0)
    if attempt.running:
        return WatchAttempt()
    if attempt.interrupted:
        return StartAttempt(attempt.number + 1)
    if policy == "Never" or (policy == "OnFailure" and attempt.has_succeeded):
        return ContainerFinished(attempt.has_succeeded)
    left = backoff.delay - ended_for
    if left > 0:
        message = f"back-off {_format_seconds(backoff.delay)} restarting failed container"
        return Wait(WaitReason.CONTAINER_RESTART, seconds=left, message=message)
    return StartAttempt(attempt.number + 1)


def _format_seconds(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def policy_of(pod: Pod, container: Container, *, init: bool) -> str:
    if is_sidecar(container):
        return "Always"
    policy = container.restart_policy or pod.spec.restart_policy or "Always"
    # An init container that has succeeded is done, so Always means OnFailure for it.
    return "OnFailure" if init and policy == "Always" else policy


def phase(pod: Pod, records: ContainerRecords, *, ended: bool) -> str:
    """The pod's phase. `ended`: nothing is restarted any more (the pod is deleted or has failed)."""
    policy = pod.spec.restart_policy or "Always"
    init = [records.get(c.name, NO_RECORD) for c in init_containers(pod)]
    if any(r.has_finished and r.current and r.current.exit_code for r in init) and (
        policy == "Never" or ended
    ):
        return "Failed"
    if not all(r.has_finished and r.current and r.current.has_succeeded for r in init):
        return "Failed" if ended and any(_has_begun(r) for r in init) else "Pending"
    mains = [records.get(c.name, NO_RECORD) for c in pod.spec.containers]
    if not all(map(_has_begun, mains)):
        # Stopped before all containers began: Failed if one has run, else the phase stays Pending.
        return "Failed" if ended and any(map(_has_begun, mains)) and not _any_running(mains) else "Pending"
    if _any_running(mains):
        return "Running"
    return _ended_phase(mains, [records.get(c.name, NO_RECORD) for c in sidecars(pod)], policy, ended=ended)


def _ended_phase(
    mains: Sequence[ContainerRecord], beside: Iterable[ContainerRecord], policy: str, *, ended: bool
) -> str:
    succeeded = all(r.current is not None and r.current.has_succeeded for r in mains)
    interrupted = any(r.current is not None and r.current.interrupted for r in mains)
    if ended:
        return "Running" if _any_running(beside) else "Succeeded" if succeeded else "Failed"
    if policy == "Always" or interrupted:
        return "Running"
    if succeeded:
        return "Succeeded"
    return "Failed" if policy == "Never" else "Running"


def _has_begun(record: ContainerRecord) -> bool:
    return record.current is not None or record.previous is not None


def _any_running(records: Iterable[ContainerRecord]) -> bool:
    return any(r.running for r in records)
