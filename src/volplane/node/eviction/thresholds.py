"""Thresholds of `--eviction-hard`, in the kubelet's syntax. Pure.

All nodes share this machine's disk with everything else on it, and a developer's disk is often more than 90
% full. Upstream's default of 10 % would evict pods while tens of gigabytes are free, so the default is an
amount.
"""

from __future__ import annotations

from fractions import Fraction

from msgspec import Struct

from volplane.api import quantity

DEFAULT = "nodefs.available<100Mi,nodefs.inodesFree<1%"

AVAILABLE, INODES_FREE = "available", "inodesFree"
# Images are not unpacked here, so imagefs is the same file system as nodefs.
SIGNALS = {
    "nodefs.available": AVAILABLE,
    "nodefs.inodesFree": INODES_FREE,
    "imagefs.available": AVAILABLE,
    "imagefs.inodesFree": INODES_FREE,
}
RESOURCES = {AVAILABLE: "ephemeral-storage", INODES_FREE: "inodes"}  # the resource names in messages


class Threshold(Struct, frozen=True):
    signal: str
    least: Fraction  # an amount, or with `is_share` a fraction of the capacity
    is_share: bool = False

    @property
    def measure(self) -> str:
        return SIGNALS[self.signal]

    def amount(self, capacity: int) -> int:
        return int(self.least * capacity) if self.is_share else int(self.least)


class MeasuredDisk(Struct, frozen=True):
    """Measured sizes of a file system."""

    available: int
    capacity: int
    inodes_free: int
    inodes: int

    def remaining(self, measure: str) -> tuple[int, int]:
        """(available, capacity)"""
        if measure == AVAILABLE:
            return self.available, self.capacity
        return self.inodes_free, self.inodes


class CrossedThreshold(Struct, frozen=True):
    """A threshold that is crossed."""

    threshold: Threshold
    least: int
    left: int


def parse(text: str) -> tuple[Threshold, ...]:
    """Raises ValueError."""
    return tuple(_parse_one(part.strip()) for part in text.split(",") if part.strip())


def _parse_one(text: str) -> Threshold:
    signal, sign, value = text.partition("<")
    if not sign or not value:
        raise ValueError(f"--eviction-hard: {text!r} is not of the form signal<amount")
    if signal not in SIGNALS:
        raise ValueError(
            f"--eviction-hard: unknown signal {signal!r}; known signals: {', '.join(sorted(SIGNALS))}"
        )
    try:
        if value.endswith("%"):
            share = Fraction(value[:-1]) / 100
            if not 0 <= share <= 1:
                raise ValueError
            return Threshold(signal, share, is_share=True)
        amount = quantity.parse(value)
    except ValueError:
        raise ValueError(
            f"--eviction-hard: {value!r} of {signal} is neither a quantity nor a percentage"
        ) from None
    if amount < 0:
        raise ValueError(f"--eviction-hard: {value!r} of {signal} must not be negative")
    return Threshold(signal, amount)


def find_crossed(thresholds: tuple[Threshold, ...], disk: MeasuredDisk) -> list[CrossedThreshold]:
    found = []
    for threshold in thresholds:
        left, capacity = disk.remaining(threshold.measure)
        least = threshold.amount(capacity)
        # Some file systems create inodes on demand and report a capacity of 0.
        if capacity and left < least:
            found.append(CrossedThreshold(threshold, least, left))
    return found
