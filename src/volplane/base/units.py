"""Durations as Go writes them and ages as kubectl prints them."""

from __future__ import annotations

import re

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(text: str) -> float:
    """Seconds in a Go duration such as `1m30s`. Raises ValueError."""
    sign = -1.0 if text.startswith("-") else 1.0
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0.0
    if not _WHOLE.fullmatch(rest):
        raise ValueError(f"invalid duration {text!r}")
    return sign * sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(rest))


def format_duration(seconds: float) -> str:
    """A Go duration as people type it: `40s`, `2m2s`, `6h`, `500ms`."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    whole, rest = divmod(round(seconds * 1000), 1000)
    if not whole:
        return f"{rest}ms" if rest else "0s"
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    last = f"{second}.{rest:03}".rstrip("0") + "s" if rest else f"{second}s" if second else ""
    return (f"{hours}h" if hours else "") + (f"{minute}m" if minute else "") + last


def human_age(seconds: float) -> str:
    """Two units where the second one still matters, one where it does not (kubectl's AGE column)."""
    whole = int(seconds)
    if whole < 0:
        return "<invalid>" if whole < -1 else "0s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    if days < 2920:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"
