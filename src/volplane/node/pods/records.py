"""Records of a pod's containers: plain data that the runtimes, the plan and the status share."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from volplane.api.core import Container, EphemeralContainer, Pod


class ContainerAttempt(Struct, frozen=True):
    """One run of a container. Numbers start at 0, so the number is the restart count."""

    number: int
    id: str  # with its scheme: process://…, task://…, containerd://…
    running: bool = False
    started_at: str = ""
    finished_at: str = ""
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    interrupted: bool = False  # the node stopped it when it stopped itself: restarted whatever the policy
    unhealthy: bool = False  # a failed probe stopped it and it is restarted: never a success
    image: str = ""  # the image that a container runtime reports, by name,
    image_id: str = ""  # and by digest
    recursive_mounts: frozenset[str] | None = None  # paths that are read-only with all below; None: as asked

    @property
    def has_succeeded(self) -> bool:
        return not self.running and self.exit_code == 0 and not self.unhealthy


class ContainerWaiting(Struct, frozen=True):
    reason: str
    message: str = ""


class ContainerRecord(Struct, frozen=True):
    """The current state of one container of a pod."""

    current: ContainerAttempt | None = None
    previous: ContainerAttempt | None = None
    waiting: ContainerWaiting | None = None  # why the next attempt has not started
    ready: bool = False
    started: bool = False  # its postStart hook has run and its startup probe has succeeded, if it has them

    @property
    def running(self) -> bool:
        return self.current is not None and self.current.running

    @property
    def has_finished(self) -> bool:
        return self.current is not None and not self.current.running and not self.current.interrupted


ContainerRecords = Mapping[str, ContainerRecord]
NO_RECORD = ContainerRecord()


def is_sidecar(container: Container) -> bool:
    """Whether it is an init container that keeps running beside the others."""
    return container.restart_policy == "Always"


def init_containers(pod: Pod) -> tuple[Container, ...]:
    """Init containers that must exit before the pod's containers start."""
    return tuple(c for c in pod.spec.init_containers if not is_sidecar(c))


def sidecars(pod: Pod) -> tuple[Container, ...]:
    return tuple(c for c in pod.spec.init_containers if is_sidecar(c))


def ephemeral_containers(pod: Pod) -> tuple[Container, ...]:
    """Ephemeral containers as Containers; they run only once."""
    return tuple(map(_as_container, pod.spec.ephemeral_containers))


def _as_container(debugger: EphemeralContainer) -> Container:
    alike = {name: getattr(debugger, name) for name in _SHARED_FIELDS}
    return Container(**{**alike, "restart_policy": "Never"})


_SHARED_FIELDS = [
    name for name in Container.__struct_fields__ if name in EphemeralContainer.__struct_fields__
]


def all_containers(pod: Pod) -> tuple[Container, ...]:
    return (*pod.spec.init_containers, *pod.spec.containers, *ephemeral_containers(pod))
