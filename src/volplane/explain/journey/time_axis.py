"""Where a moment of a journey stands on its time line, from 0 to 1.

A volume lives for hours and moves in milliseconds. So time without any step is shortened to a gap: what is
in between keeps its proportions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

GAP_FACTOR = 0.25  # idle time is a gap if it is longer than this part of all busy time, …
SHORTEST_GAP = 0.05  # … and than this many seconds
GAP_WIDTH = 0.02  # of the whole line
MOST_GAPS = 12  # with more, gaps are narrower


class BusyTime(Struct, frozen=True):
    """Time with steps, and where it begins on the line."""

    begins: datetime
    ends: datetime
    position: float
    width: float

    @property
    def seconds(self) -> float:
        return (self.ends - self.begins).total_seconds()


class TimeAxis(Struct, frozen=True):
    parts: tuple[BusyTime, ...]

    @classmethod
    def over(cls, spans: Iterable[tuple[datetime, datetime]]) -> TimeAxis:
        """The axis of steps, each given by its begin and its end."""
        busy = _merge(sorted(spans))
        total = sum((ends - begins for begins, ends in busy), timedelta()).total_seconds()
        joined = _join_close(busy, max(GAP_FACTOR * total, SHORTEST_GAP))
        total = sum((ends - begins for begins, ends in joined), timedelta()).total_seconds()
        gaps = len(joined) - 1
        gap = GAP_WIDTH * min(1.0, MOST_GAPS / gaps) if gaps > 0 else 0.0
        room, position = 1.0 - gap * max(gaps, 0), 0.0
        parts = []
        for begins, ends in joined:
            seconds = (ends - begins).total_seconds()
            width = room * seconds / total if total else room / len(joined)
            parts.append(BusyTime(begins, ends, position, width))
            position += width + gap
        return cls(tuple(parts))

    def locate(self, at: datetime) -> float:
        """From 0 to 1. A moment in a gap stands at the gap."""
        if not self.parts:
            return 0.0
        number = bisect_right([part.begins for part in self.parts], at) - 1
        if number < 0:
            return 0.0
        part = self.parts[number]
        if at >= part.ends:
            return min(part.position + part.width, 1.0)
        return part.position + part.width * (at - part.begins).total_seconds() / part.seconds

    @property
    def gaps(self) -> list[tuple[float, timedelta]]:
        """The middle of each gap, and how much time it stands for."""
        pairs = zip(self.parts, self.parts[1:], strict=False)
        return [((a.position + a.width + b.position) / 2, b.begins - a.ends) for a, b in pairs]

    def list_ticks(self, most: int = 4) -> list[tuple[float, float]]:
        """Positions of round times, and their seconds since the begin; in the first part only."""
        if not self.parts or not self.parts[0].seconds:
            return []
        first = self.parts[0]
        step = _round_step(first.seconds / max(most * first.width, 1))
        count = int(first.seconds / step)
        return [
            (first.position + first.width * n * step / first.seconds, n * step) for n in range(1, count + 1)
        ]


def _merge(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    merged: list[tuple[datetime, datetime]] = []
    for begins, ends in spans:
        if merged and begins <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], ends))
        else:
            merged.append((begins, ends))
    return merged


def _join_close(busy: Sequence[tuple[datetime, datetime]], longest: float) -> list[tuple[datetime, datetime]]:
    """Idle time that is not longer than this belongs to the busy time around it."""
    joined: list[tuple[datetime, datetime]] = []
    for begins, ends in busy:
        if joined and (begins - joined[-1][1]).total_seconds() <= longest:
            joined[-1] = (joined[-1][0], ends)
        else:
            joined.append((begins, ends))
    return joined


def _round_step(seconds: float) -> float:
    """1, 2 or 5 times a power of ten, not smaller than the given time."""
    power = 10.0**-9
    while power * 10 <= seconds:
        power *= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= seconds)
