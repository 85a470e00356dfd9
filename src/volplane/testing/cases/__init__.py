"""Every case, in the order of the run: from what a driver says of itself to what the field does to it."""

from __future__ import annotations

from volplane.testing import sanity
from volplane.testing.case import Case
from volplane.testing.cases import (
    attach,
    cluster,
    controller,
    copies,
    deaths,
    disturbed,
    groups,
    growth,
    identity,
    killed,
    leaks,
    metadata,
    modify,
    node,
    order,
    questions,
    sharing,
    told,
)


async def _elsewhere(world: object) -> None:
    """It is another program that is run once, after all cases of ours."""


BARE: tuple[Case, ...] = (
    *identity.case,
    *controller.case,
    *attach.case,
    *node.case,
    *sharing.case,
    *order.case,
    *growth.case,
    *copies.case,
    *groups.case,
    *metadata.case,
    *modify.case,
    *told.case,
    *disturbed.case,
    *questions.case,
    *leaks.case,
)
SANITY = Case(sanity.CASE, "csi-sanity", "Upstream's own tests, where they are on PATH.", _elsewhere)
ALL: tuple[Case, ...] = (*BARE, SANITY, *cluster.case, *killed.case, *deaths.case)
