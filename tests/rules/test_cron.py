"""Cron schedules: text → the moments that fit."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from volplane.rules.cron import InvalidSchedule, parse, zone


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        pytest.param("* * * * *", "2026-01-01T00:00:00", "2026-01-01T00:01:00", id="every minute"),
        pytest.param("*/15 * * * *", "2026-01-01T00:15:00", "2026-01-01T00:30:00", id="every quarter"),
        pytest.param("5/20 * * * *", "2026-01-01T00:26:00", "2026-01-01T00:45:00", id="from five on"),
        pytest.param("0 3 * * *", "2026-01-01T03:00:00", "2026-01-02T03:00:00", id="daily"),
        pytest.param("30 1-3 * * *", "2026-01-01T01:45:00", "2026-01-01T02:30:00", id="a range of hours"),
        pytest.param("0 0 1 * *", "2026-01-15T00:00:00", "2026-02-01T00:00:00", id="the first of the month"),
        pytest.param("0 0 31 * *", "2026-02-01T00:00:00", "2026-03-31T00:00:00", id="months without a 31st"),
        pytest.param("0 0 29 2 *", "2026-01-01T00:00:00", "2028-02-29T00:00:00", id="a leap day"),
        pytest.param("0 0 * * mon", "2026-01-01T00:00:00", "2026-01-05T00:00:00", id="a day by name"),
        pytest.param("0 0 * JAN,jul 0", "2026-01-26T00:00:00", "2026-07-05T00:00:00", id="months by name"),
        pytest.param("0 0 13 * 5", "2026-01-01T00:00:00", "2026-01-02T00:00:00", id="either day suffices"),
        pytest.param("@hourly", "2026-01-01T00:30:00", "2026-01-01T01:00:00", id="a descriptor"),
        pytest.param("@every 90s", "2026-01-01T00:00:10", "2026-01-01T00:01:40", id="every so often"),
    ],
)
def test_the_next_moment(schedule: str, after: str, expected: str) -> None:
    assert parse(schedule).after(at(after)) == at(expected)


def test_a_date_that_never_comes() -> None:
    assert parse("0 0 31 2 *").after(at("2026-01-01T00:00:00")) is None


def test_the_latest_moment_in_a_span() -> None:
    schedule = parse("0 * * * *")
    assert schedule.latest(at("2025-01-01T00:00:00"), at("2026-01-01T05:59:00")) == at("2026-01-01T05:00:00")
    assert schedule.latest(at("2026-01-01T05:00:00"), at("2026-01-01T05:59:00")) is None
    assert schedule.latest(at("2026-01-01T04:59:00"), at("2026-01-01T05:00:00")) == at("2026-01-01T05:00:00")
    every = parse("@every 1h")
    assert every.latest(at("2026-01-01T00:10:00"), at("2026-01-01T03:00:00")) == at("2026-01-01T02:10:00")


def test_a_zone_that_changes_its_clocks() -> None:
    berlin = zone("Europe/Berlin")
    schedule = parse("30 2 * * *")
    # 2:30 does not exist on the 29th of March, and comes twice on the 25th of October.
    assert schedule.after(at("2026-03-28T02:00:00"), berlin) == at("2026-03-30T00:30:00")
    first = schedule.after(at("2026-10-24T12:00:00"), berlin)
    assert first == at("2026-10-25T00:30:00")
    assert schedule.after(first, berlin) == at("2026-10-26T01:30:00")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("* * * *", "expected exactly 5 fields, found 4: [* * * *]", id="four fields"),
        pytest.param("60 * * * *", "end of range (60) above maximum (59): 60", id="too large"),
        pytest.param("* * 0 * *", "beginning of range (0) below minimum (1): 0", id="too small"),
        pytest.param("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1", id="backwards"),
        pytest.param("*/0 * * * *", "step of range should be a positive number: */0", id="no step"),
        pytest.param("x * * * *", "failed to parse int from x", id="no number"),
        pytest.param("@sometimes", "unrecognized descriptor: @sometimes", id="descriptor"),
        pytest.param("@every soon", "failed to parse duration @every soon", id="no duration"),
    ],
)
def test_what_is_no_schedule(text: str, message: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        parse(text)
    assert message in str(refused.value)
