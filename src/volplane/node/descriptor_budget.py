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
from volplane.node.network.relay import RelayLinks
from volplane.node.services import ServiceShares

REASON = "OutOfFileDescriptors"
PRESSURE = "PIDPressure"
PRESSURE_REASON = "KubeletHasInsufficientFileDescriptors"

POD = 5  # descriptors per pod: its network and two sockets in it, and one that is being replaced
CONTAINER = 3  # per container: the pidfd, the launcher's reply, a short exec
BUILTIN = 5  # per built-in image: sockets, channels, files
SMALL_POD = POD + CONTAINER
LEAST_RESERVE = 48
SHARE = 16  # one in this many is reserved for running pods
CRITICAL = 2_000_000_000  # from this priority on a pod may use half of the reserve


class DescriptorReservations:
    """Descriptors of starting pods, relayed connections and node ports, for all nodes of a process."""

    def __init__(self) -> None:
        self._pods: dict[str, int] = {}  # by uid
        self.relay_links: RelayLinks = set()
        self.services = ServiceShares(self.relay_links)

    def add(self, uid: str, count: int) -> None:
        self._pods[uid] = count

    def remove(self, uid: str) -> None:
        self._pods.pop(uid, None)

    def count_used(self) -> int:
        """Descriptors that are open or reserved."""
        return descriptors.open_count() + sum(self._pods.values())

    def count_free(self, *, critical: bool = False) -> int:
        """Descriptors that are left for new pods."""
        limit = descriptors.limit()
        reserve = max(LEAST_RESERVE, limit // SHARE) // (2 if critical else 1)
        return limit - reserve - self.count_used()

    def __str__(self) -> str:
        return (
            f"{self.count_used()} of {descriptors.limit()} file descriptors of this node's process are in use"
        )


class DescriptorBudget:
    """`is_builtin`: the container runs inside this process. `set_pressure` sets the Node's condition."""

    def __init__(
        self,
        is_builtin: Callable[[Container], bool],
        set_pressure: Callable[[str, str, str], None],
        reservations: DescriptorReservations,
    ) -> None:
        self._is_builtin, self._set_pressure, self._reservations = is_builtin, set_pressure, reservations

    def estimate(self, pod: Pod) -> int:
        """Descriptors that the pod needs in this process."""
        containers = (*pod.spec.containers, *pod.spec.init_containers)
        return POD + sum(BUILTIN if self._is_builtin(c) else CONTAINER for c in containers)

    def check(self, pod: Pod) -> Rejection | None:
        """Reserve descriptors for the pod until it has started or ended, or reject it."""
        need = self.estimate(pod)
        critical = (pod.spec.priority or 0) >= CRITICAL
        if need > self._reservations.count_free(critical=critical):
            self.update_pressure()
            return Rejection(
                REASON,
                f"{self._reservations}, the pod needs about {need}, and the rest is reserved for running"
                " pods. Delete pods, or raise the limit of open files",
            )
        self._reservations.add(pod.uid, need)
        return None

    def pod_started(self, uid: str) -> None:
        """Its descriptors are open and counted."""
        self._reservations.remove(uid)

    def pod_ended(self, uid: str) -> None:
        self._reservations.remove(uid)
        self.update_pressure()

    def update_pressure(self) -> None:
        """Set or clear the Node's condition."""
        if self._reservations.count_free() < SMALL_POD:
            text = f"{self._reservations}: new pods are rejected"
            self._set_pressure(PRESSURE, PRESSURE_REASON, text)
        else:
            self._set_pressure(PRESSURE, "", "")
