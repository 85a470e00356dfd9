"""The failpoints of the disk service, at which crash tests kill it."""

from __future__ import annotations

from volplane.base import failpoint


def hit_failpoint(action: str, point: str) -> None:
    if failpoint.is_armed:
        failpoint.hit(f"cloud:{action}:{point}")
