"""Where a crash test can have the service die."""

from __future__ import annotations

from volplane.base import failpoint


def hit_failpoint(action: str, point: str) -> None:
    if failpoint.armed:
        failpoint.hit(f"cloud:{action}:{point}")
