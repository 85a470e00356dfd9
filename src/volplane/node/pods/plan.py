"""What happens next to one container, and what that makes of its pod.

Pure: restart policies, crash-loop backoff and the pod's phase are functions of the records. A container's
first restart is immediate; each further one waits twice as long, until it has run well for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from volplane.api.core import Container, Pod
from volplane.node.pods.records import (
    NOTHING,
    Attempt,
    Record,
    Records,
    init_containers,
    is_sidecar,
    sidecars,
)
from volplane.rules.steps import Wait

FIRST_BACKOFF = 10.0
LONGEST_BACKOFF = 300.0
FORGIVEN_AFTER = 600.0  # seconds of running after which earlier crashes no longer count


class Start(Struct, frozen=True):
    number: int


class Watch(Struct, frozen=True):
    """It runs: wait for its end."""


class Finished(Struct, frozen=True):
    """It ended and stays ended."""

    succeeded: bool


class Backoff(Struct, frozen=True):
    """How long the next restart waits after the last end; nothing before the first one."""

    delay: float = 0.0
    longest: float = LONGEST_BACKOFF

    def restarted(self) -> Backoff:
        return Backoff(min(self.delay * 2 or FIRST_BACKOFF, self.longest), self.longest)

    def ran(self, seconds: float) -> Backoff:
        return Backoff(0.0, self.longest) if seconds >= FORGIVEN_AFTER else self


def plan(
    policy: str, attempt: Attempt | None, backoff: Backoff, ended_for: float
) -> Start | Watch | Finished | Wait:
    """`ended_for`: seconds since the attempt ended."""
    if attempt is None:
        return Start(0)
    if attempt.running:
        return Watch()
    if attempt.interrupted:
        return Start(attempt.number + 1)
    if policy == "Never" or (policy == "OnFailure" and attempt.succeeded):
        return Finished(attempt.succeeded)
    left = backoff.delay - ended_for
    if left > 0:
        return Wait(left, f"back-off {_spell(backoff.delay)} restarting failed container")
    return Start(attempt.number + 1)


def _spell(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def policy_of(pod: Pod, container: Container, *, init: bool) -> str:
    if is_sidecar(container):
        return "Always"
    policy = container.restart_policy or pod.spec.restart_policy or "Always"
    # An init container that succeeded is done for good, so that Always means OnFailure for it.
    return "OnFailure" if init and policy == "Always" else policy


def phase(pod: Pod, records: Records, *, ended: bool) -> str:
    """`ended`: nothing will be restarted any more (the pod is deleted or was failed)."""
    policy = pod.spec.restart_policy or "Always"
    init = [records.get(c.name, NOTHING) for c in init_containers(pod)]
    if any(r.finished and r.current and r.current.exit_code for r in init) and (policy == "Never" or ended):
        return "Failed"
    if not all(r.finished and r.current and r.current.succeeded for r in init):
        return "Failed" if ended and any(_began(r) for r in init) else "Pending"
    mains = [records.get(c.name, NOTHING) for c in pod.spec.containers]
    if not all(map(_began, mains)):
        # Deleted before all of it began: failed as soon as something did run, else it stays as it was.
        return "Failed" if ended and any(map(_began, mains)) and not _any_running(mains) else "Pending"
    if _any_running(mains):
        return "Running"
    return _ended_phase(mains, [records.get(c.name, NOTHING) for c in sidecars(pod)], policy, ended=ended)


def _ended_phase(mains: Sequence[Record], beside: Iterable[Record], policy: str, *, ended: bool) -> str:
    succeeded = all(r.current is not None and r.current.succeeded for r in mains)
    interrupted = any(r.current is not None and r.current.interrupted for r in mains)
    if ended:
        return "Running" if _any_running(beside) else "Succeeded" if succeeded else "Failed"
    if policy == "Always" or interrupted:
        return "Running"
    if succeeded:
        return "Succeeded"
    return "Failed" if policy == "Never" else "Running"


def _began(record: Record) -> bool:
    return record.current is not None or record.previous is not None


def _any_running(records: Iterable[Record]) -> bool:
    return any(r.running for r in records)
