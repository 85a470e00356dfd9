"""All cases, in the order of a run."""

from __future__ import annotations

from volplane.testing import sanity
from volplane.testing.case import Case
from volplane.testing.cases import (
    attach,
    cluster,
    control_plane_crash,
    controller,
    driver_crash,
    expand,
    faults,
    groups,
    identity,
    leaks,
    metadata,
    modify,
    node,
    observability,
    order,
    read_only_rpcs,
    sharing,
    snapshots_clones,
)


async def _run_by_sanity(env: object) -> None:
    """csi-sanity runs once, after our own cases."""


SOCKET_CASES: tuple[Case, ...] = (
    *identity.case,
    *controller.case,
    *attach.case,
    *node.case,
    *sharing.case,
    *order.case,
    *expand.case,
    *snapshots_clones.case,
    *groups.case,
    *metadata.case,
    *modify.case,
    *observability.case,
    *faults.case,
    *read_only_rpcs.case,
    *leaks.case,
)
SANITY = Case(sanity.CASE, "csi-sanity", "Upstream's own tests, where they are on PATH.", _run_by_sanity)
ALL_CASES: tuple[Case, ...] = (
    *SOCKET_CASES,
    SANITY,
    *cluster.case,
    *driver_crash.case,
    *control_plane_crash.case,
)
