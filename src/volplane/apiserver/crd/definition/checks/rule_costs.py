"""Refuse rules that may cost too much: each for itself, and all rules of a schema together.

The cost of one run is multiplied by how many values it may run for. The limits and messages are upstream's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from volplane.api.errors import Cause, forbidden
from volplane.apiserver.crd.cel.declared_sizes import declared_size, most_occurrences
from volplane.apiserver.crd.cel.estimates import LARGEST
from volplane.apiserver.crd.cel_rules import estimate_rule
from volplane.apiserver.crd.schema import Schema, additional_of

RULE_LIMIT = 10_000_000
SCHEMA_LIMIT = 100_000_000
_NOTED = SCHEMA_LIMIT // 100
_MOST_NOTED = 4
_ADVICE = (
    "try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and "
    "strings are declared"
)


class RuleCosts(Struct):
    """The costs of the rules of one schema."""

    limited: bool = True  # refuse single rules; not if the schema was accepted before
    total: int = 0
    expensive: tuple[tuple[int, str], ...] = ()  # with paths, the most expensive first

    def check(
        self, rule: Mapping[str, Any], schema: Schema, path: str, *, resource: bool, occurrences: int | None
    ) -> Iterator[Cause]:
        """`occurrences`: how many values of the schema an object can have, None if there is no limit."""
        size = declared_size(schema, resource=resource)
        if size is None:
            return
        cost, message = estimate_rule(rule, schema, size, resource=resource)
        times = most_occurrences(size) if occurrences is None else occurrences
        yield from self._note(f"{path}.rule", "rule", min(cost * times, LARGEST))
        yield from self._note(f"{path}.messageExpression", "messageExpression", message)

    def _note(self, path: str, what: str, cost: int) -> Iterator[Cause]:
        if self.limited and cost > RULE_LIMIT:
            yield forbidden(path, _excess(f"estimated {what} cost", cost, RULE_LIMIT))
        self.total = min(self.total + cost, LARGEST)
        if cost >= _NOTED:
            noted = sorted((*self.expensive, (cost, path)), key=lambda entry: -entry[0])
            self.expensive = tuple(noted[:_MOST_NOTED])

    def check_total(self, path: str) -> Iterator[Cause]:
        if self.total <= SCHEMA_LIMIT:
            return
        detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
        for _, rule in self.expensive:
            yield forbidden(rule, detail)
        what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema"
        yield forbidden(path, _excess(what, self.total, SCHEMA_LIMIT))


def occurrences_below(schema: Schema, occurrences: int | None) -> int | None:
    """How many values the children of a schema can have: as many, or times the limit of a list or map."""
    if occurrences is None:
        return None
    match schema.get("type"):
        case "object" if additional_of(schema) is not None:
            limit = schema.get("maxProperties")
        case "array":
            limit = schema.get("maxItems")
        case _:
            return occurrences
    return None if limit is None else min(occurrences * max(limit, 0), LARGEST)


def _excess(what: str, cost: int, limit: int) -> str:
    factor = cost / limit
    shown = f"{factor:.6f}x" if factor < 1.5 else f"{factor:.1f}x"
    if factor > 100:
        shown = "more than 100x"
    return f"{what} exceeds budget by factor of {shown} ({_ADVICE})"
