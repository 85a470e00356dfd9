"""Quantities: `1Gi`, `500m`, `1.5e3`. Exact arithmetic, and the canonical spelling that the server stores.

A canonical quantity keeps its suffix family (`1024Mi` becomes `1Gi`, `1000M` becomes `1G`), a fraction moves
to a smaller suffix (`0.5` becomes `500m`), and nothing is finer than nano.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

_PATTERN = re.compile(r"^([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?\d+))?$")
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BY_POWER = {v: k for k, v in _DECIMAL.items()}
_BY_BINARY = {v: k for k, v in _BINARY.items()} | {0: ""}

_NANOS = 10**9  # in a unit

MAX_LENGTH = 256  # characters
MAX_EXPONENT = 99  # larger numbers would take all the memory to compute

MESSAGE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


class InvalidQuantity(ValueError):
    """The text is not a quantity."""

    def __init__(self, text: object) -> None:
        super().__init__(MESSAGE)
        self.text = text


@lru_cache(maxsize=4096)
def _read(text: str) -> tuple[Fraction, str]:
    found = _PATTERN.match(text) if len(text) <= MAX_LENGTH else None
    if found is None:
        raise InvalidQuantity(text)
    sign, digits, binary, decimal, exponent = found.groups()
    if exponent is not None and abs(int(exponent)) > MAX_EXPONENT:
        raise InvalidQuantity(text)
    number = Fraction(digits)
    family = "decimal"
    if binary:
        number, family = number * 1024 ** _BINARY[binary], "binary"
    elif decimal:
        number *= Fraction(1000) ** _DECIMAL[decimal]
    elif exponent is not None:
        number, family = number * Fraction(10) ** int(exponent), "exponent"
    return (-number if sign == "-" else number), family


def parse(text: str | int | float) -> Fraction:
    """The exact number. Raises InvalidQuantity."""
    return _read(str(text))[0]


@lru_cache(maxsize=4096)
def value(text: str | int | float) -> int:
    """Whole units, rounded up, as CSI needs them."""
    number = parse(text)
    return -(-number.numerator // number.denominator)


def milli(text: str | int | float) -> int:
    """Thousandths, rounded up, as for CPU."""
    number = parse(text) * 1000
    return -(-number.numerator // number.denominator)


class Amount(NamedTuple):
    """A quantity for sums: exact, because nothing is finer than nano, and with its suffix family."""

    nanos: int
    family: str


@lru_cache(maxsize=4096)
def amount(text: str) -> Amount:
    number, family = _read(text)
    number *= _NANOS
    return Amount(-(-number.numerator // number.denominator), family)


def format_amount(amount: Amount) -> str:
    return _format(Fraction(amount.nanos, _NANOS), amount.family)


def from_bytes(count: int) -> str:
    """The quantity of a size in bytes, with a binary suffix if that is exact."""
    return _binary(count)


def _binary(count: int) -> str:
    power = 0
    while count and count % 1024 == 0 and power < 6:
        count, power = count // 1024, power + 1
    return f"{count}{_BY_BINARY[power]}"


def _decimal(number: Fraction) -> str:
    power = 0
    while number.denominator != 1 and power > -3:
        number, power = number * 1000, power - 1
    count = -(-number.numerator // number.denominator)  # nano is the smallest unit: round up
    while count and count % 1000 == 0 and power < 6:
        count, power = count // 1000, power + 1
    return f"{count}{_BY_POWER[power]}"


def _exponent(number: Fraction) -> str:
    power = 0
    while number.denominator != 1 and power > -9:
        number, power = number * 1000, power - 3
    count = -(-number.numerator // number.denominator)
    while count and count % 1000 == 0:
        count, power = count // 1000, power + 3
    return f"{count}e{power}" if power else str(count)


@lru_cache(maxsize=4096)
def _canonical(text: str) -> str:
    return _format(*_read(text))


def _format(number: Fraction, family: str) -> str:
    if number == 0:
        return "0"
    if family == "exponent":
        return _exponent(number)
    # A binary suffix needs a whole number of at least 1 Ki; others are written in decimal.
    if family == "binary" and number.denominator == 1 and abs(number) >= 1024:
        return _binary(number.numerator)
    return _decimal(number)


def canonical(text: str | int | float) -> str:
    """The canonical form within its suffix family."""
    return _canonical(str(text))
