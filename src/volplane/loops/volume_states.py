"""The DesiredStateOfWorld of a role beside its ActualStateOfWorld, volume by volume.

The attach/detach controller compares where volumes are needed with where they are attached; a kubelet
compares what its pods need with what is mounted. Between the two stands the step that comes next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from math import isinf

from msgspec import Struct

from volplane.base import clock
from volplane.loops.queue import WaitingKey
from volplane.rules.waits import Wait, WaitReason

ATTACH_DETACH_ROLE = "attachdetach"


class PendingStep(Struct, frozen=True, omit_defaults=True):
    """The next step of a plan, or what the plan waits for."""

    text: str
    reason: str = ""  # a WaitReason; "" for a step that is carried out now
    since: datetime | None = None
    next_try: datetime | None = None  # None: only a change continues it


class ComparedVolume(Struct, frozen=True):
    """One volume at one place: a node for the attach/detach controller, a pod for a kubelet."""

    volume: str  # the unique name
    name: str  # of the PersistentVolume, or of the volume in the pod
    plugin: str  # such as kubernetes.io/csi:ebs.csi.aws.com
    node: str
    pods: Sequence[str] = ()  # namespace/name, or the uid of a pod that is not known any more
    desired: str = ""  # "" if it is in the ActualStateOfWorld only
    actual: str = ""  # "" if it is in the DesiredStateOfWorld only
    pending: PendingStep | None = None  # None: desired and actual state agree


class StateComparison(Struct, frozen=True):
    """All volumes of a role."""

    role: str  # `attachdetach` or `node/worker-1`
    volumes: Sequence[ComparedVolume] = ()


def group_waits(waits: Iterable[WaitingKey[str]]) -> Mapping[str, Sequence[WaitingKey[str]]]:
    """The waits of a controller by key."""
    found: dict[str, list[WaitingKey[str]]] = {}
    for waiting in waits:
        found.setdefault(waiting.key, []).append(waiting)
    return found


def pending_step(text: str, waits: Iterable[WaitingKey[str]]) -> PendingStep:
    """A step that is carried out now, or that failed and is retried. `waits`: those of its key."""
    for waiting in waits:
        if waiting.wait.reason is WaitReason.RETRY:
            shown = f"{text}: {waiting.wait.text}"
            return PendingStep(shown, WaitReason.RETRY, waiting.since, waiting.next_try)
    return PendingStep(text)


def pending_wait(wait: Wait, waits: Iterable[WaitingKey[str]]) -> PendingStep:
    """A wait, with the times that the queue knows. `waits`: those of its key."""
    for waiting in waits:
        if waiting.wait.identity == wait.identity:
            return PendingStep(wait.text, wait.reason, waiting.since, waiting.next_try)
    next_try = None if isinf(wait.seconds) else clock.wall() + timedelta(seconds=max(wait.seconds, 0.0))
    return PendingStep(wait.text, wait.reason, next_try=next_try)
