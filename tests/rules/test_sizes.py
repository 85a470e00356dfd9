"""Sizes of claims and volumes."""

from __future__ import annotations

from volplane.api.codec import convert
from volplane.api.core import PersistentVolumeClaim
from volplane.rules import sizes


def test_the_claimed_size_is_that_of_the_status() -> None:
    claim = convert(PersistentVolumeClaim, {"status": {"capacity": {"storage": "1Ki"}}})
    assert sizes.claimed_size(claim) == 1024
    assert sizes.claimed_size(PersistentVolumeClaim()) == 0
    assert sizes.claimed_size(None) == 0
