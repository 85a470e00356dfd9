"""The filters, one file each, in the order in which they run; the first that refuses a node decides.

A filter prepares once per pod: it has nothing to check (None), refuses the pod on every node (`PodRefusal`),
or returns a check for single nodes. To add one, write its file and add it to `FILTERS`.
"""

from __future__ import annotations

from volplane.scheduler.filters import (
    inter_pod_affinity,
    node_affinity,
    node_name,
    node_ports,
    node_resources,
    node_unschedulable,
    taint_toleration,
    topology_spread,
    volume_binding,
    volume_limits,
    volume_restrictions,
    volume_zone,
)
from volplane.scheduler.filters.base import Filter

FILTERS: tuple[Filter, ...] = (
    node_unschedulable.FILTER,
    node_name.FILTER,
    taint_toleration.FILTER,
    node_affinity.FILTER,
    node_ports.FILTER,
    node_resources.FILTER,
    volume_restrictions.FILTER,
    volume_limits.FILTER,
    volume_binding.FILTER,
    volume_zone.FILTER,
    topology_spread.FILTER,
    inter_pod_affinity.FILTER,
)
