"""String formats in schemas. Unknown formats are accepted and ignored.

Names are compared without dashes: `date-time` and `datetime` are the same format.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from urllib.parse import urlsplit

from volplane.api import names

_UUID = "[0-9a-f]{8}-?[0-9a-f]{4}-?%s[0-9a-f]{3}-?%s[0-9a-f]{3}-?[0-9a-f]{12}"
_HEX = "[0-9a-f]"
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})")
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_DURATION = re.compile(r"(?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+")
_WORDED_DURATION = re.compile(
    r"\s*\d+\s*(ns|nanos?|nanoseconds?|us|µs|micros?|microseconds?|ms|millis?|milliseconds?|s|secs?|seconds?|"
    r"m|mins?|minutes?|h|hrs?|hours?|d|days?|w|wks?|weeks?)\s*"
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_LABEL = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?")
_EMAIL = re.compile(r"[^@\s<>]+@[^@\s<>]+|[^<>]*<[^@\s<>]+@[^@\s<>]+>")


def _pattern(text: str) -> Callable[[str], bool]:
    compiled = re.compile(text, re.I)
    return lambda value: compiled.fullmatch(value) is not None


def _accepted_by(parse: Callable[[str], object]) -> Callable[[str], bool]:
    """Accept values for which `parse` is true and raises no ValueError."""

    def check(value: str) -> bool:
        try:
            return bool(parse(value))
        except ValueError:
            return False

    return check


def _date_time(value: str) -> object:
    found = _RFC3339.fullmatch(value)
    return found and datetime.fromisoformat(f"{found[1]}T{found[2]}")


def _duration(value: str) -> bool:
    bare = value.removeprefix("-").removeprefix("+")
    if bare == "0" or _DURATION.fullmatch(bare):
        return True
    return _WORDED_DURATION.fullmatch(value) is not None


def _hostname(value: str) -> bool:
    return 0 < len(value) <= 255 and all(_LABEL.fullmatch(part) for part in value.split("."))


def _ipv4(value: str) -> object:
    # Leading zeros are accepted, as upstream does.
    return ipaddress.IPv4Address(".".join(str(int(part)) for part in value.split(".")))


def _mac(value: str) -> bool:
    for separator, width, counts in ((":", 2, (6, 8, 20)), ("-", 2, (6, 8, 20)), (".", 4, (3, 4, 10))):
        parts = value.split(separator)
        if len(parts) in counts:
            return all(re.fullmatch(rf"[0-9a-fA-F]{{{width}}}", part) for part in parts)
    return False


def _isbn10(value: str) -> bool:
    digits = re.sub(r"[\s-]", "", value)
    if not re.fullmatch(r"\d{9}[\dX]", digits):
        return False
    weights = (10 if digit == "X" else int(digit) for digit in digits)
    return sum((at + 1) * weight for at, weight in enumerate(weights)) % 11 == 0


def _isbn13(value: str) -> bool:
    digits = re.sub(r"[\s-]", "", value)
    if not re.fullmatch(r"\d{13}", digits):
        return False
    return sum((3 if at % 2 else 1) * int(digit) for at, digit in enumerate(digits)) % 10 == 0


def _card(value: str) -> bool:
    digits = re.sub(r"\D", "", value)
    if not 13 <= len(digits) <= 19:
        return False
    doubled = [int(d) * (2 if at % 2 else 1) for at, d in enumerate(reversed(digits))]
    return sum(d - 9 if d > 9 else d for d in doubled) % 10 == 0


def _rgb(value: str) -> bool:
    found = re.fullmatch(r"rgb\(\s*(\d{1,3})\s*,\s*(\d{1,3})\s*,\s*(\d{1,3})\s*\)", value)
    return found is not None and all(int(part) <= 255 for part in found.groups())


FORMATS: Mapping[str, Callable[[str], bool]] = {
    "bsonobjectid": _pattern("[0-9a-f]{24}"),
    # What a request line accepts: an absolute URI, or an absolute path.
    "uri": _accepted_by(lambda value: urlsplit(value).scheme or value.startswith("/")),
    "email": lambda value: _EMAIL.fullmatch(value) is not None,
    "hostname": _hostname,
    "ipv4": _accepted_by(_ipv4),
    "ipv6": _accepted_by(lambda value: ":" in value and ipaddress.IPv6Address(value)),
    "cidr": _accepted_by(lambda value: "/" in value and ipaddress.ip_network(value, strict=False)),
    "mac": _mac,
    "uuid": _pattern(_UUID % (_HEX, _HEX)),
    "uuid3": _pattern(_UUID % ("3", _HEX)),
    "uuid4": _pattern(_UUID % ("4", "[89ab]")),
    "uuid5": _pattern(_UUID % ("5", "[89ab]")),
    "isbn": lambda value: _isbn10(value) or _isbn13(value),
    "isbn10": _isbn10,
    "isbn13": _isbn13,
    "creditcard": _card,
    "ssn": _pattern(r"\d{3}[- ]?\d{2}[- ]?\d{4}"),
    "hexcolor": _pattern("#?([0-9a-f]{3}|[0-9a-f]{6})"),
    "rgbcolor": _rgb,
    "byte": lambda value: _BASE64.fullmatch(value) is not None,
    "password": lambda value: True,
    "date": _accepted_by(lambda value: _DATE.fullmatch(value) and date.fromisoformat(value)),
    "duration": _duration,
    "datetime": _accepted_by(_date_time),
    "k8sshortname": names.is_label,
    "k8slongname": names.is_subdomain,
}
_NUMERIC = {"integer": ("int32", "int64"), "number": ("float", "double")}


def is_known_format(type: str, format: str) -> bool:
    """Return whether the format applies to values of this type."""
    if type in _NUMERIC:
        return format in _NUMERIC[type]
    return type in ("", "string") and format.replace("-", "") in FORMATS


def matches_format(format: str, value: str) -> bool:
    check = FORMATS.get(format.replace("-", ""))
    return check is None or check(value)
