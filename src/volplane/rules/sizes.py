"""Sizes of claims and volumes, and how to write them."""

from __future__ import annotations

from volplane.api import quantity
from volplane.api.core import PersistentVolume, PersistentVolumeClaim


def requested_size(claim: PersistentVolumeClaim) -> int:
    return quantity.value(claim.spec.resources.requests.get("storage", "0"))


def claimed_size(claim: PersistentVolumeClaim | None) -> int:
    """The size in bytes that the claim's status shows, 0 if none."""
    claimed = claim.status.capacity.get("storage", "") if claim is not None else ""
    return quantity.value(claimed) if claimed else 0


def capacity(volume: PersistentVolume) -> int:
    return quantity.value(volume.spec.capacity.get("storage", "0"))


def format_size(size: int) -> str:
    """As the API writes sizes: `1Gi` if it is a multiple, bytes otherwise."""
    return quantity.from_bytes(size)
