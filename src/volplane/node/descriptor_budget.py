"""File descriptors: a pod is rejected if the node's process has too few left for it.

The process holds a few for every pod: the container's pidfd and sockets, the network's namespace, a driver's
channel. When they run out, whatever comes next fails, be it a mount or the heartbeat. So a part is kept for
running pods, and a pod that would need it is rejected, as upstream's kubelet rejects a pod that does not fit.
The Node reports PIDPressure meanwhile, so that the scheduler sends no more pods.
"""

from __future__ import annotations

from collections.abc import Callable

from volplane.api.core import Container, Pod
from volplane.base import descriptors
from volplane.node.admission import Rejection
from volplane.node.network.relay import RelayLinks

REASON = "OutOfFileDescriptors"
PRESSURE = "PIDPressure"
PRESSURE_REASON = "KubeletHasInsufficientFileDescriptors"

POD = 4  # descriptors of a pod: its network, and one that is being replaced
CONTAINER = 3  # the pidfd, the launcher's answer, an exec that comes and goes
BUILTIN = 5  # of an image that runs inside this process: sockets, channels, files
SMALL_POD = POD + CONTAINER
LEAST_RESERVE = 48
SHARE = 16  # this part of the limit is kept for what is running
CRITICAL = 2_000_000_000  # from this priority on a pod may use half of what is kept


class DescriptorReservations:
    """What all nodes of one process share, because they share its limit of open files."""

    def __init__(self) -> None:
        self.starting_pods: dict[str, int] = {}  # by uid: descriptors that the pod will still open
        self.relay_links: RelayLinks = set()


class DescriptorBudget:
    """`is_builtin` tells containers inside this process; `set_pressure` sets the condition of the Node."""

    def __init__(
        self,
        is_builtin: Callable[[Container], bool],
        set_pressure: Callable[[str, str, str], None],
        starting: dict[str, int],
    ) -> None:
        self._is_builtin, self._set_pressure = is_builtin, set_pressure
        self._starting = starting  # of all nodes, see DescriptorReservations

    def estimate(self, pod: Pod) -> int:
        """How many descriptors the pod takes in this process."""
        containers = (*pod.spec.containers, *pod.spec.init_containers)
        return POD + sum(BUILTIN if self._is_builtin(c) else CONTAINER for c in containers)

    def check(self, pod: Pod) -> Rejection | None:
        """Reserve descriptors for the pod until it has started or ended; else say why there are none."""
        need = self.estimate(pod)
        critical = (pod.spec.priority or 0) >= CRITICAL
        if need > self._count_free(critical=critical):
            self.update_pressure()
            return Rejection(
                REASON,
                f"{self._describe_use()} file descriptors of this node's process are in use, the pod needs "
                f"about {need}, and the rest is kept for running pods. Delete pods, "
                "or raise the limit of open files",
            )
        self._starting[pod.uid] = need
        return None

    def pod_started(self, uid: str) -> None:
        """Its descriptors are open, and counted."""
        self._starting.pop(uid, None)

    def pod_ended(self, uid: str) -> None:
        self._starting.pop(uid, None)
        self.update_pressure()

    def update_pressure(self) -> None:
        """Set or clear the Node's condition."""
        if self._count_free() < SMALL_POD:
            use = f"{self._describe_use()} file descriptors of this node's process are in use"
            text = f"{use}: new pods are refused"
            self._set_pressure(PRESSURE, PRESSURE_REASON, text)
        else:
            self._set_pressure(PRESSURE, "", "")

    def _count_free(self, *, critical: bool = False) -> int:
        """Descriptors that new pods may still have."""
        limit = descriptors.limit()
        kept = max(LEAST_RESERVE, limit // SHARE) // (2 if critical else 1)
        return limit - kept - self._count_used()

    def _count_used(self) -> int:
        return descriptors.open_count() + sum(self._starting.values())

    def _describe_use(self) -> str:
        return f"{self._count_used()} of {descriptors.limit()}"
