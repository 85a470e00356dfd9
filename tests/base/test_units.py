"""Go durations and kubectl's ages."""

from __future__ import annotations

import pytest

from volplane.base import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1m30s", 90),
        ("0", 0),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("-2s", -2),
        ("10µs", 1e-5),
        (".5s", 0.5),
        ("1h0m1s", 3601),
    ],
)
def test_durations_are_read_as_go_reads_them(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["40s", "2m2s", "6h", "1h30m", "500ms", "1.5s", "0s", "24h", "-2s"])
def test_a_duration_is_written_as_people_type_it(text: str) -> None:
    assert units.format_duration(units.parse_duration(text)) == text


@pytest.mark.parametrize("text", ["", "5", "s", "1m 30s", "1d", "--1s", "1s!"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        units.parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-0.5, "0s"),
        (5.9, "5s"),
        (119, "119s"),
        (120, "2m"),
        (200, "3m20s"),
        (3600, "60m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 300, "3h5m"),
        (10 * 3600 + 300, "10h"),
        (51 * 3600, "2d3h"),
        (9 * 86400, "9d"),
        (800 * 86400, "2y70d"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_ages_look_like_kubectls(seconds: float, text: str) -> None:
    assert units.human_age(seconds) == text
