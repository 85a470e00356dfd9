"""Cron schedules: five fields or a descriptor, and the next time that matches.

When both the day of the month and the day of the week are restricted, either one suffices. When clocks
change, a time that a zone skips does not happen, and one that comes twice happens once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from msgspec import Struct

_DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_EVERY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|m|h)")
_DURATION = re.compile(rf"(?:{_EVERY.pattern})+")
_DIGITS = 9  # digits of a number in a schedule; no field takes more
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = 9.2e9  # seconds; 64 bits of nanoseconds
_HORIZON = 5 * 366  # days; every date occurs within them, February 29 included


class InvalidSchedule(ValueError):
    """The text is not a schedule."""


class Bounds(Struct, frozen=True):
    low: int
    high: int
    names: Mapping[str, int] = {}


_FIELDS = (
    Bounds(0, 59),
    Bounds(0, 23),
    Bounds(1, 31),
    Bounds(1, 12, {name: at for at, name in enumerate(_MONTHS, 1)}),
    Bounds(0, 6, {name: at for at, name in enumerate(_DAYS)}),
)


class Schedule(Struct, frozen=True):
    minutes: frozenset[int] = frozenset()
    hours: frozenset[int] = frozenset()
    days: frozenset[int] = frozenset()
    months: frozenset[int] = frozenset()
    weekdays: frozenset[int] = frozenset()
    any_day: bool = True  # the day of the month is a star
    any_weekday: bool = True
    every: float = 0.0  # seconds, for `@every`

    def after(self, moment: datetime, where: tzinfo = UTC) -> datetime | None:
        """The first matching time after this one, in UTC; None if there is none."""
        if self.every:
            return moment.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=self.every)
        first = moment.astimezone(where).date()
        for days in range(_HORIZON):
            for found in self._on(first + timedelta(days=days), where):
                if found > moment:
                    return found
        return None

    def latest(self, since: datetime, until: datetime, where: tzinfo = UTC) -> datetime | None:
        """The last matching time after `since` and not after `until`."""
        if self.every:
            times = int((until - since).total_seconds() / self.every)
            return since.astimezone(UTC) + timedelta(seconds=times * self.every) if times > 0 else None
        day, first = until.astimezone(where).date(), since.astimezone(where).date()
        while day >= first:
            for found in reversed(self._on(day, where)):
                if since < found <= until:
                    return found
            day -= timedelta(days=1)
        return None

    def _on(self, day: date, where: tzinfo) -> list[datetime]:
        """All matching times of a day, in order."""
        if day.month not in self.months or not self._fits(day.day, (day.weekday() + 1) % 7):
            return []
        local = (
            datetime(day.year, day.month, day.day, hour, minute, tzinfo=where)
            for hour in sorted(self.hours)
            for minute in sorted(self.minutes)
        )
        pairs = ((found.astimezone(UTC), found.replace(tzinfo=None)) for found in local)
        return [utc for utc, shown in pairs if utc.astimezone(where).replace(tzinfo=None) == shown]

    def _fits(self, day: int, weekday: int) -> bool:
        if self.any_day or self.any_weekday:
            return day in self.days and weekday in self.weekdays
        return day in self.days or weekday in self.weekdays


def parse(text: str) -> Schedule:
    """Raises InvalidSchedule."""
    text = text.strip()
    if text.startswith("@every "):
        return Schedule(every=max(_duration(text.removeprefix("@every ").strip()), 1.0))
    if text.startswith("@"):
        if text not in _DESCRIPTORS:
            raise InvalidSchedule(f"unrecognized descriptor: {text}")
        text = _DESCRIPTORS[text]
    parts = text.split()
    if len(parts) != len(_FIELDS):
        raise InvalidSchedule(f"expected exactly 5 fields, found {len(parts)}: [{' '.join(parts)}]")
    sets = [_field(part, bounds) for part, bounds in zip(parts, _FIELDS, strict=True)]
    minutes, hours, days, months, weekdays = sets
    return Schedule(minutes, hours, days, months, weekdays, _is_any(parts[2]), _is_any(parts[4]))


def zone(name: str | None) -> tzinfo:
    """Raises KeyError or ValueError for an unknown zone."""
    return ZoneInfo(name) if name else UTC


def _is_any(part: str) -> bool:
    return part.split("/")[0] in ("*", "?")


def _field(text: str, bounds: Bounds) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        found.update(_range(part, bounds))
    return frozenset(found)


def _range(text: str, bounds: Bounds) -> range:
    span, slash, step_text = text.partition("/")
    first_text, dash, last_text = span.partition("-")
    if first_text in ("*", "?"):
        first, last = bounds.low, bounds.high
    else:
        first = _number(first_text, bounds)
        last = _number(last_text, bounds) if dash else (bounds.high if slash else first)
    step = _number(step_text, Bounds(0, 0)) if slash else 1
    if first < bounds.low:
        raise InvalidSchedule(f"beginning of range ({first}) below minimum ({bounds.low}): {text}")
    if last > bounds.high:
        raise InvalidSchedule(f"end of range ({last}) above maximum ({bounds.high}): {text}")
    if first > last:
        raise InvalidSchedule(f"beginning of range ({first}) beyond end of range ({last}): {text}")
    if step == 0:
        raise InvalidSchedule(f"step of range should be a positive number: {text}")
    return range(first, last + 1, step)


def _number(text: str, bounds: Bounds) -> int:
    if text.lower() in bounds.names:
        return bounds.names[text.lower()]
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS:
        raise InvalidSchedule(
            f'failed to parse int from {text}: strconv.Atoi: parsing "{text}": invalid syntax'
        )
    return int(text)


def _duration(text: str) -> float:
    # The whole text first: searching parts in a long number without a unit takes quadratic time.
    seconds = 0.0
    if _DURATION.fullmatch(text):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _EVERY.findall(text))
    if not 0 < seconds < _LONGEST:
        raise InvalidSchedule(f"failed to parse duration @every {text}")
    return seconds
