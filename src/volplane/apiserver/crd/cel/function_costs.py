"""What a call costs at most, besides its arguments, and how long its result is.

The numbers are upstream's (cel-go's `checker/cost.go`, Kubernetes' `cel/library/cost.go`), with their
oddities: they decide which rules a definition may have, and a manifest must be accepted by both or by none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from volplane.apiserver.crd.cel.estimates import (
    LARGEST,
    ONE,
    PATTERN,
    TRAVERSAL,
    UNKNOWN,
    ZERO,
    Estimate,
)
from volplane.apiserver.crd.cel.library import Overload
from volplane.apiserver.crd.cel.types import BYTES, DYN, STRING, CelType

_ADDRESS = Estimate(4, 16)  # bytes
_LONGEST_NAME_PATTERN = 128
_LONGEST_FORMAT = 64


class Operand(NamedTuple):
    """An argument of a call; the target of a method is its first."""

    type: CelType
    known_size: Estimate | None = None
    item_size: Estimate = UNKNOWN  # of each element of a list
    literal: Any = None

    @property
    def size(self) -> Estimate:
        return UNKNOWN if self.known_size is None else self.known_size


class CallCost(NamedTuple):
    cost: Estimate
    size: Estimate | None = None


_Costs = Callable[[Overload, Sequence[Operand]], CallCost]


def call_cost(overload: Overload, args: Sequence[Operand]) -> CallCost:
    """Without the cost of the arguments."""
    given = _COSTS.get(overload.name)
    return given(overload, args) if given is not None else CallCost(ONE)


def _reads(at: int, factor: float = TRAVERSAL, *, keeps: bool = False) -> _Costs:
    """Reads the characters of one argument; with `keeps` the result is as long."""

    def cost(overload: Overload, args: Sequence[Operand]) -> CallCost:
        size = args[at].size
        return CallCost(size.scale(factor), size if keeps else None)

    return cost


# Operators


def _equality(overload: Overload, args: Sequence[Operand]) -> CallCost:
    one, other = args
    if overload.name == "_==_" and one.type.name == other.type.name:
        match one.type.name:
            case "ip" | "cidr" | "quantity":
                return CallCost(ONE)
            case "format":
                return CallCost(Estimate(1, _LONGEST_FORMAT).scale(TRAVERSAL))
            case "url":
                return CallCost(Estimate(1, (other.known_size or ONE).high).scale(TRAVERSAL))
    most = min(one.size.high, other.size.high)
    return CallCost(Estimate(min(most, 1), most).scale(TRAVERSAL))


def _comparison(overload: Overload, args: Sequence[Operand]) -> CallCost:
    return _equality(overload, args) if overload.args[0] in (STRING, BYTES) else CallCost(ONE)


def _sum(overload: Overload, args: Sequence[Operand]) -> CallCost:
    size = args[0].size.plus(args[1].size)
    if overload.args[0].name == "list":
        return CallCost(ONE, size)
    return CallCost(size.scale(TRAVERSAL), size) if overload.args[0] in (STRING, BYTES) else CallCost(ONE)


def _membership(overload: Overload, args: Sequence[Operand]) -> CallCost:
    return CallCost(args[1].size if overload.args[1].name == "list" else ONE)


# Conversions


def _to_bytes(overload: Overload, args: Sequence[Operand]) -> CallCost:
    if overload.args[0] != STRING:
        return CallCost(ONE)
    size = args[0].size
    return CallCost(size.scale(TRAVERSAL), Estimate(size.low, _wrap(size.high * 4)))


def _to_string(overload: Overload, args: Sequence[Operand]) -> CallCost:
    size = args[0].size
    decoded = CallCost(size.scale(TRAVERSAL), Estimate(size.low // 4, size.high))
    if args[0].type == BYTES:
        return decoded
    return decoded._replace(cost=decoded.cost.union(ONE)) if args[0].type == DYN else CallCost(ONE)


def _wrap(amount: int) -> int:
    return amount % (LARGEST + 1)  # upstream multiplies without a guard


# Text


def _search(overload: Overload, args: Sequence[Operand]) -> CallCost:
    """The length of one string times that of the other."""
    return CallCost(args[0].size.scale(TRAVERSAL).times(args[1].size.scale(TRAVERSAL)))


def _pattern(overload: Overload, args: Sequence[Operand]) -> CallCost:
    if not overload.member:
        return CallCost(ONE)
    text = args[0].size.plus(ONE).scale(TRAVERSAL)
    cost = text.times(args[1].size.scale(PATTERN))
    return CallCost(cost, None if overload.name == "matches" else Estimate(0, args[0].size.high))


def _replacement(overload: Overload, args: Sequence[Operand]) -> CallCost:
    text, old, new = (arg.size for arg in args[:3])
    most, kept_of_most = _count_replacements(text.high, old.low, new.high <= old.low)
    least, kept_of_least = _count_replacements(text.low, old.high, old.high <= new.low)
    size = Estimate(least, most).times(new).plus(Estimate(kept_of_least, kept_of_most))
    return CallCost(text.scale(2 * TRAVERSAL), size)


def _count_replacements(length: int, old: int, stays: bool) -> tuple[int, int]:
    """How often something is replaced, and how many characters are kept besides."""
    if old == 0:  # between all characters
        return min(length + 1, LARGEST), length
    return (0, length) if stays else (math.ceil(float(length) / float(old)), 0)


def _split(overload: Overload, args: Sequence[Operand]) -> CallCost:
    limit = args[2].literal if len(args) > 2 else None
    most = _wrap(limit) if isinstance(limit, int) else args[0].size.high
    return CallCost(args[0].size.scale(2 * TRAVERSAL), Estimate(0, most))


def _join(overload: Overload, args: Sequence[Operand]) -> CallCost:
    items = args[0].size
    size = items.times(args[0].item_size)
    if len(args) > 1:
        gaps = Estimate(max(items.low - 1, 0), max(items.high - 1, 0))
        size = size.plus(args[1].size.times(gaps))
    return CallCost(size.scale(TRAVERSAL), size)


def _validation(overload: Overload, args: Sequence[Operand]) -> CallCost:
    return CallCost(args[1].size.scale(TRAVERSAL).scale(_LONGEST_NAME_PATTERN * PATTERN))


# Lists


def _per_element(overload: Overload, args: Sequence[Operand]) -> CallCost:
    held = args[0]
    if not held.type.inner:  # a string, or not known
        return CallCost(held.size.scale(TRAVERSAL))
    cost = ONE
    if held.type.inner[0] in (STRING, BYTES):
        cost = cost.plus(held.item_size.scale(TRAVERSAL))
    return CallCost(held.size.times(cost))


# Addresses


def _to_ip(overload: Overload, args: Sequence[Operand]) -> CallCost:
    return CallCost(ONE) if overload.member else CallCost(args[0].size.scale(TRAVERSAL))


def _contains_ip(overload: Overload, args: Sequence[Operand]) -> CallCost:
    cost = _ADDRESS.plus(_ADDRESS).scale(TRAVERSAL)
    return CallCost(cost.plus(_parsing(overload, args)))


def _contains_cidr(overload: Overload, args: Sequence[Operand]) -> CallCost:
    cost = _ADDRESS.plus(_ADDRESS).scale(TRAVERSAL).plus(_ADDRESS.scale(TRAVERSAL)).plus(ONE)
    return CallCost(cost.plus(_parsing(overload, args)))


def _parsing(overload: Overload, args: Sequence[Operand]) -> Estimate:
    return args[1].size.scale(TRAVERSAL) if overload.args[1] == STRING else ZERO


_COSTS: Mapping[str, _Costs] = {
    "_==_": _equality,
    "_!=_": _equality,
    **dict.fromkeys(("_<_", "_<=_", "_>_", "_>=_"), _comparison),
    "_+_": _sum,
    "@in": _membership,
    "bytes": _to_bytes,
    "string": _to_string,
    "contains": _search,
    **dict.fromkeys(("startsWith", "endsWith"), _reads(1)),
    **dict.fromkeys(("matches", "find", "findAll"), _pattern),
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _reads(0, keeps=True)),
    "replace": _replacement,
    "split": _split,
    "join": _join,
    "format": _reads(0),
    "validate": _validation,
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _per_element),
    "url": _reads(0, keeps=True),
    **dict.fromkeys(("cidr", "isIP", "isCIDR", "quantity", "isQuantity"), _reads(0)),
    "ip": _to_ip,
    "isCanonical": _reads(1, 2 * TRAVERSAL),
    "containsIP": _contains_ip,
    "containsCIDR": _contains_cidr,
}
