"""Timestamps and the loop's clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from volplane.base import clock
from volplane.base.virtual_time_loop import EPOCH

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 60, tzinfo=UTC)


def test_a_time_has_whole_seconds_and_a_microtime_always_six_digits() -> None:
    assert clock.stamp(MOMENT) == "2026-01-02T03:04:05Z"
    assert clock.microstamp(MOMENT) == "2026-01-02T03:04:05.000060Z"
    assert clock.microstamp(MOMENT.replace(microsecond=0)) == "2026-01-02T03:04:05.000000Z"


def test_stamps_are_in_utc_whatever_the_zone_of_the_moment() -> None:
    assert clock.stamp(MOMENT.astimezone(timezone(timedelta(hours=2)))) == "2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02T03:04:05Z", MOMENT.replace(microsecond=0)),
        ("2026-01-02T03:04:05.000060Z", MOMENT),
        ("2026-01-02T03:04:05.000060999Z", MOMENT),
        ("2026-01-02T05:04:05+02:00", MOMENT.replace(microsecond=0)),
    ],
)
def test_times_are_read_as_go_writes_them(text: str, expected: datetime) -> None:
    assert clock.parse(text) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-02T03:04:05"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # the texts are Python's own
        clock.parse(text)


async def test_wall_time_is_the_machines_on_a_real_loop() -> None:
    assert abs(clock.wall() - datetime.now(UTC)) < timedelta(minutes=1)


def test_wall_time_needs_no_loop() -> None:
    assert clock.wall().tzinfo is UTC


@pytest.mark.virtual
async def test_wall_time_follows_the_virtual_loop() -> None:
    before = clock.now()
    await asyncio.sleep(360)
    assert clock.now() == before + 360
    assert clock.wall() - EPOCH == timedelta(seconds=clock.now())


def test_a_microstamp_of_now_is_between_two_readings_of_the_clock() -> None:
    before, now, after = clock.wall(), clock.parse(clock.microstamp()), clock.wall()
    assert before <= now <= after
    assert len(clock.microstamp()) == len("2026-01-02T03:04:05.000060Z")
