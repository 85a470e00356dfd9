"""Every case, in the order of the run: from what a driver says of itself to what the field does to it."""

from __future__ import annotations

from volplane.testing.case import Case
from volplane.testing.cases import attach, controller, copies, disturbed, growth, identity, leaks, node

ALL: tuple[Case, ...] = (
    *identity.case,
    *controller.case,
    *attach.case,
    *node.case,
    *growth.case,
    *copies.case,
    *disturbed.case,
    *leaks.case,
)
