"""Delays that double after each failure: the one backoff of queues, retries and supervisors."""

from __future__ import annotations

from msgspec import Struct


class Backoff(Struct, frozen=True):
    """`first` seconds after one failure, twice as long after each further one, at most `longest`."""

    first: float = 0.005
    longest: float = 1000.0

    def delay(self, failures: int) -> float:
        """Seconds before the next try, after this many failures in a row."""
        return min(self.first * 2.0 ** min(failures - 1, 60), self.longest)


def constant(seconds: float) -> Backoff:
    """The same delay after every failure."""
    return Backoff(seconds, seconds)


class Failures:
    """Counts failures in a row, for a loop that is not a plain retry."""

    __slots__ = ("backoff", "count")

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff
        self.count = 0

    def next_delay(self) -> float:
        """Count a failure; seconds to wait before the next try."""
        self.count += 1
        return self.backoff.delay(self.count)

    def reset(self) -> None:
        """A try succeeded: the next failure waits for the first delay again."""
        self.count = 0
