"""Pods that fit on no node, by the filters that refused them: only relevant changes wake them.

Each refusal in a row doubles the pause before the pod is tried again, however often it is woken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from volplane.api.meta import Resource
from volplane.base.backoff import Backoff
from volplane.scheduler.filters.base import Filter

BACKOFF = Backoff(0.01, 10.0)


class UnschedulableRecord(Struct):
    filters: frozenset[str] = frozenset()
    times: int = 0
    due: float = 0.0  # end of the backoff
    reported_message: str = ""


class UnschedulablePods:
    def __init__(self, filters: Iterable[Filter], backoff: Backoff = BACKOFF) -> None:
        self._backoff = backoff
        self._records: dict[str, UnschedulableRecord] = {}
        self._by_filter: dict[str, dict[str, None]] = {f.name: {} for f in filters}
        self._woken: dict[type[Resource], list[str]] = {}
        for f in filters:
            for kind in f.waking_kinds:
                self._woken.setdefault(kind, []).append(f.name)

    def put(self, key: str, by: frozenset[str], now: float) -> UnschedulableRecord:
        record = self._records.setdefault(key, UnschedulableRecord())
        self._unlink(key, record)
        record.filters = by
        record.times += 1
        record.due = now + self._backoff.delay(record.times)
        for name in by:
            self._by_filter.setdefault(name, {})[key] = None
        return record

    def note_message(self, key: str, message: str) -> bool:
        """Note the message; True if it differs from the last one."""
        record = self._records.get(key)
        if record is None or record.reported_message == message:
            return False
        record.reported_message = message
        return True

    def pause(self, key: str, now: float) -> float:
        record = self._records.get(key)
        return record.due - now if record is not None else 0.0

    def clear_backoff(self, key: str) -> None:
        record = self._records.get(key)
        if record is not None:
            record.due = 0.0

    def pods_woken_by(self, kind: type[Resource]) -> Iterator[str]:
        for name in self._woken.get(kind, ()):
            yield from list(self._by_filter[name])

    def pods_refused_by(self, *names: str) -> Iterator[str]:
        """The pods that one of these filters refused."""
        for name in names:
            yield from list(self._by_filter.get(name, ()))

    def drop(self, key: str) -> None:
        record = self._records.pop(key, None)
        if record is not None:
            self._unlink(key, record)

    def _unlink(self, key: str, record: UnschedulableRecord) -> None:
        for name in record.filters:
            self._by_filter[name].pop(key, None)
