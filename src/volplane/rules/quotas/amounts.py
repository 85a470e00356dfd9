"""Amounts of resources: exact sums that keep the spelling of what is summed (`1Gi` + `512Mi` is `1536Mi`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from volplane.api import quantity
from volplane.api.quantity import Amount

Amounts = Mapping[str, Amount]  # by resource name

ONE = quantity.amount("1")
NOTHING = quantity.amount("0")


def read_amounts(texts: Mapping[str, str]) -> dict[str, Amount]:
    return {name: quantity.amount(text) for name, text in texts.items()}


def add(one: Amount, other: Amount) -> Amount:
    return Amount(one.nanos + other.nanos, one.family if one.nanos else other.family)


def subtract(one: Amount, other: Amount) -> Amount:
    """The difference, at least 0."""
    return Amount(max(one.nanos - other.nanos, 0), one.family)


def sum_amounts(parts: Iterable[Amounts]) -> dict[str, Amount]:
    total: dict[str, Amount] = {}
    for part in parts:
        for name, amount in part.items():
            held = total.get(name)
            total[name] = amount if held is None else add(held, amount)
    return total


def greatest(one: Amounts, other: Amounts) -> dict[str, Amount]:
    total = dict(one)
    for name, amount in other.items():
        if name not in total or amount.nanos > total[name].nanos:
            total[name] = amount
    return total


def format_amounts(amounts: Amounts) -> dict[str, str]:
    return {name: quantity.format_amount(amount) for name, amount in amounts.items()}
