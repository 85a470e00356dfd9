"""Which operation on a volume may start: one at a time per key, and failed ones wait longer each time.

A key is (volume, pod); an empty pod stands for every pod, so that a mount (volume, "") excludes all unmounts
of that volume while unmounts of two pods run side by side. A failed operation keeps only its own kind
waiting: when the pod is deleted, the unmount does not sit out the mount's backoff. Nor does its failure end
that: a mount and an unmount that both fail would drive each other round without a pause. A success does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from msgspec import Struct

FIRST = 0.5


class OperationKey(NamedTuple):
    volume: str
    pod: str = ""

    def meets(self, other: OperationKey) -> bool:
        """An empty volume meets nothing, an empty pod meets every pod."""
        if not self.volume or self.volume != other.volume:
            return False
        return not self.pod or not other.pod or self.pod == other.pod


class OperationFailure(Struct):
    error: str
    delay: float
    until: float


class PendingOperations:
    def __init__(self, clock: Callable[[], float], longest: float) -> None:
        self._clock, self._longest = clock, longest
        self._running: dict[str, dict[str, str]] = {}  # volume → pod → operation
        # volume → (pod, operation such as volume_mount) → its last failure
        self._failed: dict[str, dict[tuple[str, str], OperationFailure]] = {}

    def is_running(self, key: OperationKey) -> bool:
        return any(key.meets(OperationKey(key.volume, pod)) for pod in self._running.get(key.volume, ()))

    def delay(self, key: OperationKey, name: str) -> float:
        """Seconds until `name` may start again after its last failure; 0 when it may start now."""
        failed = self.failure(key, name)
        return max(0.0, failed.until - self._clock()) if failed else 0.0

    def failure(self, key: OperationKey, name: str) -> OperationFailure | None:
        failed = self._failed.get(key.volume, {})
        mine = (of for of in failed if of[1] == name and key.meets(OperationKey(key.volume, of[0])))
        return failed[first] if (first := next(mine, None)) else None

    @contextmanager
    def running(self, key: OperationKey, name: str) -> Iterator[None]:
        """Run one operation; an exception that leaves the block counts as its failure."""
        assert not self.is_running(key), f"already executing: {key}"
        running = self._running.setdefault(key.volume, {})
        running[key.pod] = name
        try:
            yield
        except Exception as error:
            self._fail(key, name, str(error))
            raise
        else:
            self._drop(key)
        finally:
            del running[key.pod]
            if not running:
                self._running.pop(key.volume, None)

    def forget(self, volume: str) -> None:
        self._failed.pop(volume, None)

    def _fail(self, key: OperationKey, name: str, error: str) -> None:
        last = self.failure(key, name)
        delay = min(last.delay * 2 if last else FIRST, self._longest)
        failed = self._failed.setdefault(key.volume, {})
        failed[key.pod, name] = OperationFailure(error, delay, self._clock() + delay)

    def _drop(self, key: OperationKey) -> None:
        failed = self._failed.get(key.volume, {})
        for of in [of for of in failed if key.meets(OperationKey(key.volume, of[0]))]:
            del failed[of]
        if not failed:
            self._failed.pop(key.volume, None)
