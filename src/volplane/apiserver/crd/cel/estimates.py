"""Ranges of costs and sizes. Sums and products end at the largest unsigned 64-bit number, as upstream's."""

from __future__ import annotations

import math
from typing import NamedTuple

LARGEST = (1 << 64) - 1
TRAVERSAL = 0.1  # cost of each character that is read
PATTERN = 0.25  # cost of each character of a pattern


class Estimate(NamedTuple):
    """The least and the most that something costs, or how long it is."""

    low: int
    high: int

    def plus(self, other: Estimate) -> Estimate:
        return Estimate(min(self.low + other.low, LARGEST), min(self.high + other.high, LARGEST))

    def times(self, other: Estimate) -> Estimate:
        return Estimate(min(self.low * other.low, LARGEST), min(self.high * other.high, LARGEST))

    def scale(self, factor: float) -> Estimate:
        """Multiplied by the cost of a unit, rounded up."""
        return Estimate(_multiply(self.low, factor), _multiply(self.high, factor))

    def union(self, other: Estimate) -> Estimate:
        return Estimate(min(self.low, other.low), max(self.high, other.high))


def exactly(amount: int) -> Estimate:
    return Estimate(amount, amount)


def _multiply(amount: int, factor: float) -> int:
    product = math.ceil(float(amount) * factor)
    return LARGEST if product >= 1 << 64 else product


ZERO, ONE = exactly(0), exactly(1)
UNKNOWN = Estimate(0, LARGEST)
NONE_YET = Estimate(LARGEST, 0)  # the union with it is the other one
