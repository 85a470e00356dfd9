"""All cases, in the order of a run."""

from __future__ import annotations

from volplane.testing import sanity
from volplane.testing.case import Case
from volplane.testing.cases import (
    arguments,
    attach,
    busy_mounts,
    bystanders,
    cluster,
    control_plane_crash,
    controller,
    driver_crash,
    expand,
    faults,
    file_attributes,
    groups,
    identity,
    independent_copies,
    kept_files,
    leaks,
    metadata,
    modify,
    node,
    observability,
    odd_sizes,
    order,
    power_loss,
    process_leaks,
    read_only_rpcs,
    secrets,
    sharing,
    snapshots_clones,
    stats_time,
    topology,
    usage,
)


async def _run_by_sanity(env: object) -> None:
    """csi-sanity runs once, after our own cases."""


SOCKET_CASES: tuple[Case, ...] = (
    *identity.case,
    *controller.case,
    *odd_sizes.case,
    *arguments.case,
    *secrets.case,
    *attach.case,
    *node.case,
    *kept_files.case,
    *busy_mounts.case,
    *bystanders.case,
    *usage.case,
    *stats_time.case,
    *sharing.case,
    *order.case,
    *expand.case,
    *snapshots_clones.case,
    *independent_copies.case,
    *file_attributes.case,
    *groups.case,
    *metadata.case,
    *modify.case,
    *observability.case,
    *topology.case,
    *power_loss.case,
    *faults.case,
    *read_only_rpcs.case,
    *leaks.case,
    *process_leaks.case,
)
SANITY = Case(sanity.CASE, "csi-sanity", "Upstream's own tests, where they are on PATH.", _run_by_sanity)
ALL_CASES: tuple[Case, ...] = (
    *SOCKET_CASES,
    SANITY,
    *cluster.case,
    *driver_crash.case,
    *control_plane_crash.case,
)
