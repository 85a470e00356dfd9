"""How many volumes are desired and how many are mounted, counted when the metrics are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from volplane.base import metrics
from volplane.base.metrics import Counts
from volplane.node.volume_manager.state import NodeVolumeState
from volplane.node.volume_manager.state_comparison import find_plugin

total_volumes = metrics.computed_gauge(
    "volume_manager_total_volumes", "Number of volumes in Volume Manager", ("plugin_name", "state")
)


def count_volumes(states: Iterable[NodeVolumeState]) -> Counts:
    """A volume counts once for each pod that needs it or has it mounted."""
    counts: Counter[tuple[str, ...]] = Counter()
    for state in states:
        plugin = find_plugin(state)
        mounted = sum(map(state.is_mounted, state.actual.mounts))
        counts[plugin, "desired_state_of_world"] += len(state.desired.pods)
        counts[plugin, "actual_state_of_world"] += mounted
    return {labels: count for labels, count in counts.items() if count}
