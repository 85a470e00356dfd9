"""What compiled expressions do when they run: members, logic, and the macros over elements.

A failure on one side of `&&` and `||`, or for one element of a macro, does not matter when another decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from volplane.apiserver.crd.cel import types
from volplane.apiserver.crd.cel.errors import NO_OVERLOAD, Exhausted, Failure
from volplane.apiserver.crd.cel.nodes import Node, parts
from volplane.apiserver.crd.cel.types import BOOL, Type, list_of, map_of
from volplane.apiserver.crd.cel.values import NOTHING, Budget, Maybe


class Scope(Struct):
    """What a running expression sees."""

    values: dict[str, Any]
    budget: Budget


Eval = Callable[[Scope], Any]


class Typed(NamedTuple):
    type: Type
    run: Eval


def paid(made: Typed, source: Node) -> Typed:
    """The same, paying for its length each time it runs: a step for ten nodes of its source."""
    steps = sum(1 for _ in parts(source)) // 10
    if not steps:
        return made

    def run(scope: Scope) -> Any:
        scope.budget.spend(steps)
        return made.run(scope)

    return Typed(made.type, run)


# Members


def has(operand: Eval, field: str) -> Eval:
    def run(scope: Scope) -> bool:
        held = _value(operand(scope))
        if held is NOTHING:
            return False
        if not isinstance(held, dict):
            raise Failure(NO_OVERLOAD)
        return field in held

    return run


def selected(operand: Eval, field: str) -> Eval:
    def run(scope: Scope) -> Any:
        held = operand(scope)
        if not isinstance(held, dict):
            raise Failure(NO_OVERLOAD)
        if field not in held:
            raise Failure(f"no such key: {field}")
        return held[field]

    return run


def maybe(operand: Eval, field: str) -> Eval:
    def run(scope: Scope) -> Maybe:
        held = _value(operand(scope))
        return Maybe(held[field]) if isinstance(held, dict) and field in held else Maybe()

    return run


def maybe_element(operand: Eval, index: Eval) -> Eval:
    def run(scope: Scope) -> Maybe:
        held, key = _value(operand(scope)), index(scope)
        there = key in held if isinstance(held, dict) else isinstance(held, list) and 0 <= key < len(held)
        return Maybe(held[key]) if there else Maybe()

    return run


def _value(held: Any) -> Any:
    return held.value if isinstance(held, Maybe) else held


def truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Failure(NO_OVERLOAD)
    return value


# Logic and literals


def both_ways(one: Eval, other: Eval, *, decides: bool) -> Eval:
    """`||` (decided by true) and `&&` (by false): a side that decides makes the other's failure harmless."""

    def run(scope: Scope) -> bool:
        try:
            if truth(one(scope)) is decides:
                return decides
        except Exhausted:
            raise
        except Failure:
            if truth(other(scope)) is decides:
                return decides
            raise
        return truth(other(scope))

    return run


def items(items: list[Typed]) -> Typed:
    runs = [item.run for item in items]
    return Typed(list_of(types.join([i.type for i in items])), lambda scope: [run(scope) for run in runs])


def entries(entries: list[tuple[Typed, Typed]]) -> Typed:
    key = types.join([k.type for k, _ in entries])
    value = types.join([v.type for _, v in entries])
    runs = [(k.run, v.run) for k, v in entries]
    return Typed(map_of(key, value), lambda scope: {k(scope): v(scope) for k, v in runs})


# Macros


def bound(scope: Scope, name: str, value: Any, body: Eval) -> Any:
    scope.budget.spend()
    before = scope.values.get(name, NOTHING)
    scope.values[name] = value
    try:
        return body(scope)
    finally:
        if before is NOTHING:
            del scope.values[name]
        else:
            scope.values[name] = before


def _elements(target: Eval, scope: Scope) -> list[Any]:
    held = target(scope)
    if not isinstance(held, list | dict):
        raise Failure(NO_OVERLOAD)
    return list(held)


def _quantifier(decides: bool) -> Callable[[Typed, str, Type, list[Typed]], Typed]:
    """`exists` is decided by a true element, `all` by a false one; failures of others do not matter then."""

    def made(target: Typed, variable: str, item: Type, bodies: list[Typed]) -> Typed:
        def run(scope: Scope) -> bool:
            failed: Failure | None = None
            for value in _elements(target.run, scope):
                try:
                    if truth(bound(scope, variable, value, bodies[0].run)) is decides:
                        return decides
                except Exhausted:
                    raise
                except Failure as error:
                    failed = error
            if failed is not None:
                raise failed
            return not decides

        return Typed(BOOL, run)

    return made


def _exists_one(target: Typed, variable: str, item: Type, bodies: list[Typed]) -> Typed:
    def run(scope: Scope) -> bool:
        values = _elements(target.run, scope)
        return sum(truth(bound(scope, variable, value, bodies[0].run)) for value in values) == 1

    return Typed(BOOL, run)


def _map(target: Typed, variable: str, item: Type, bodies: list[Typed]) -> Typed:
    *tests, made = bodies

    def run(scope: Scope) -> list[Any]:
        values = _elements(target.run, scope)
        kept = [v for v in values if all(truth(bound(scope, variable, v, t.run)) for t in tests)]
        return [bound(scope, variable, value, made.run) for value in kept]

    return Typed(list_of(made.type), run)


def _filter(target: Typed, variable: str, item: Type, bodies: list[Typed]) -> Typed:
    def run(scope: Scope) -> list[Any]:
        values = _elements(target.run, scope)
        return [value for value in values if truth(bound(scope, variable, value, bodies[0].run))]

    return Typed(list_of(item), run)


MACROS: Mapping[str, Callable[[Typed, str, Type, list[Typed]], Typed]] = {
    "all": _quantifier(False),
    "exists": _quantifier(True),
    "exists_one": _exists_one,
    "map": _map,
    "filter": _filter,
}
