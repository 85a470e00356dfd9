"""File descriptors: a pod is rejected if this process has too few left for it.

Each pod takes some: the container's pidfd and sockets, the network namespace, the channel to a driver. When
they run out, every later operation fails, be it a mount or the heartbeat. So some are reserved for running
pods, and a pod that would need them is rejected, as the kubelet rejects a pod that does not fit. Meanwhile
the Node reports PIDPressure, so that the scheduler sends no more pods.
"""

from __future__ import annotations

from collections.abc import Callable

from volplane.api.core import Container, Pod
from volplane.base import descriptors
from volplane.node.admission import Rejection

REASON = "OutOfFileDescriptors"
PRESSURE = "PIDPressure"
PRESSURE_REASON = "KubeletHasInsufficientFileDescriptors"

POD = 4  # descriptors per pod: its network, and one that is being replaced
CONTAINER = 3  # per container: the pidfd, the launcher's reply, a short exec
BUILTIN = 5  # per built-in image: sockets, channels, files
SMALL_POD = POD + CONTAINER
LEAST_RESERVE = 48
SHARE = 16  # one in this many is reserved for running pods
CRITICAL = 2_000_000_000  # from this priority on a pod may use half of the reserve

_starting: dict[str, int] = {}  # descriptors that starting pods will open, by uid; all nodes share the limit


class DescriptorBudget:
    """`is_builtin`: the container runs inside this process. `set_pressure` sets the Node's condition."""

    def __init__(
        self, is_builtin: Callable[[Container], bool], set_pressure: Callable[[str, str, str], None]
    ) -> None:
        self._is_builtin, self._set_pressure = is_builtin, set_pressure

    def estimate(self, pod: Pod) -> int:
        """Descriptors that the pod needs in this process."""
        containers = (*pod.spec.containers, *pod.spec.init_containers)
        return POD + sum(BUILTIN if self._is_builtin(c) else CONTAINER for c in containers)

    def check(self, pod: Pod) -> Rejection | None:
        """Reserve descriptors for the pod until it has started or ended, or reject it."""
        need = self.estimate(pod)
        critical = (pod.spec.priority or 0) >= CRITICAL
        if need > count_free_descriptors(critical=critical):
            self.update_pressure()
            return Rejection(
                REASON,
                f"{_in_use()} file descriptors of this node's process are in use, the pod needs about {need}"
                ", and the rest is reserved for running pods. Delete pods, or raise the limit of open files",
            )
        _starting[pod.uid] = need
        return None

    def pod_started(self, uid: str) -> None:
        """Its descriptors are open and counted."""
        _starting.pop(uid, None)

    def pod_ended(self, uid: str) -> None:
        _starting.pop(uid, None)
        self.update_pressure()

    def update_pressure(self) -> None:
        """Set or clear the Node's condition."""
        if count_free_descriptors() < SMALL_POD:
            text = f"{_in_use()} file descriptors of this node's process are in use: new pods are rejected"
            self._set_pressure(PRESSURE, PRESSURE_REASON, text)
        else:
            self._set_pressure(PRESSURE, "", "")


def count_free_descriptors(*, critical: bool = False) -> int:
    """Descriptors that are left for new pods."""
    limit = descriptors.limit()
    kept = max(LEAST_RESERVE, limit // SHARE) // (2 if critical else 1)
    return limit - kept - descriptors.open_count() - sum(_starting.values())


def _in_use() -> str:
    return f"{descriptors.open_count() + sum(_starting.values())} of {descriptors.limit()}"
