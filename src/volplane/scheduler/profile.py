"""A profile: how the pods of one schedulerName are scheduled."""

from __future__ import annotations

from msgspec import Struct

from volplane.scheduler.filters import FILTERS
from volplane.scheduler.filters.base import Filter

DEFAULT = "default-scheduler"
BIND_TIMEOUT = 600.0
MAX_FEASIBLE_NODES = 100  # the search ends with this many feasible nodes


class ScoreWeights(Struct, frozen=True):
    """How much each plugin's score counts; 0: it is disabled."""

    resources: int = 1  # NodeResourcesFit
    pod_affinity: int = 2
    spread: int = 2
    node_affinity: int = 2
    taints: int = 3


class SchedulerProfile(Struct, frozen=True):
    scheduler_name: str = DEFAULT
    filters: tuple[Filter, ...] = FILTERS
    weights: ScoreWeights = ScoreWeights()
    preempts: bool = True  # whether DefaultPreemption is enabled
    bind_timeout: float = BIND_TIMEOUT  # seconds that a pod waits for its volumes
    percentage: int = 0  # of all nodes: when so many are feasible, the search ends; 0: at the usual number

    @property
    def binds_volumes(self) -> bool:
        """Whether VolumeBinding is enabled. Without it a pod does not wait for its volumes, as upstream."""
        return any(filter.name == "VolumeBinding" for filter in self.filters)

    def most_feasible(self, nodes: int) -> int:
        """The number of feasible nodes with which the search ends."""
        return max(MAX_FEASIBLE_NODES, nodes * self.percentage // 100)


DEFAULT_PROFILE = SchedulerProfile()
