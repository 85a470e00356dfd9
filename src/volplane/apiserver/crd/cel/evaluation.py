"""Evaluation of compiled expressions: members, logic, and macros over elements.

An error on one side of `&&` or `||`, or for one element of a macro, is ignored if another one decides the
result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from volplane.apiserver.crd.cel import types
from volplane.apiserver.crd.cel.errors import NO_OVERLOAD, CelEvaluationError, CostLimitExceeded
from volplane.apiserver.crd.cel.nodes import Expr, walk_expr
from volplane.apiserver.crd.cel.types import BOOL, CelType, list_of, map_of
from volplane.apiserver.crd.cel.values import NOTHING, CostBudget, OptionalValue


class EvaluationScope(Struct):
    """The variables and the cost budget of an evaluation."""

    values: dict[str, Any]
    budget: CostBudget


Eval = Callable[[EvaluationScope], Any]


class TypedEval(NamedTuple):
    type: CelType
    run: Eval


def charge_for_length(compiled: TypedEval, source: Expr) -> TypedEval:
    """Charge one step per ten nodes of the source each time it runs."""
    steps = sum(1 for _ in walk_expr(source)) // 10
    if not steps:
        return compiled

    def run(scope: EvaluationScope) -> Any:
        scope.budget.spend(steps)
        return compiled.run(scope)

    return TypedEval(compiled.type, run)


# Members


def has(operand: Eval, field: str) -> Eval:
    def run(scope: EvaluationScope) -> bool:
        held = _value(operand(scope))
        if held is NOTHING:
            return False
        if not isinstance(held, dict):
            raise CelEvaluationError(NO_OVERLOAD)
        return field in held

    return run


def select(operand: Eval, field: str) -> Eval:
    def run(scope: EvaluationScope) -> Any:
        held = operand(scope)
        if not isinstance(held, dict):
            raise CelEvaluationError(NO_OVERLOAD)
        if field not in held:
            raise CelEvaluationError(f"no such key: {field}")
        return held[field]

    return run


def maybe(operand: Eval, field: str) -> Eval:
    def run(scope: EvaluationScope) -> OptionalValue:
        held = _value(operand(scope))
        return OptionalValue(held[field]) if isinstance(held, dict) and field in held else OptionalValue()

    return run


def maybe_element(operand: Eval, index: Eval) -> Eval:
    def run(scope: EvaluationScope) -> OptionalValue:
        held, key = _value(operand(scope)), index(scope)
        there = key in held if isinstance(held, dict) else isinstance(held, list) and 0 <= key < len(held)
        return OptionalValue(held[key]) if there else OptionalValue()

    return run


def _value(held: Any) -> Any:
    return held.value if isinstance(held, OptionalValue) else held


def truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise CelEvaluationError(NO_OVERLOAD)
    return value


# Logic and literals


def short_circuit(one: Eval, other: Eval, *, decides: bool) -> Eval:
    """`||` (true decides) and `&&` (false decides): if one side decides, an error on the other is ignored."""

    def run(scope: EvaluationScope) -> bool:
        try:
            if truth(one(scope)) is decides:
                return decides
        except CostLimitExceeded:
            raise
        except CelEvaluationError:
            if truth(other(scope)) is decides:
                return decides
            raise
        return truth(other(scope))

    return run


def list_literal(items: list[TypedEval]) -> TypedEval:
    runs = [item.run for item in items]
    return TypedEval(list_of(types.join([i.type for i in items])), lambda scope: [run(scope) for run in runs])


def map_literal(entries: list[tuple[TypedEval, TypedEval]]) -> TypedEval:
    key = types.join([k.type for k, _ in entries])
    value = types.join([v.type for _, v in entries])
    runs = [(k.run, v.run) for k, v in entries]
    return TypedEval(map_of(key, value), lambda scope: {k(scope): v(scope) for k, v in runs})


# Macros


def with_variable(scope: EvaluationScope, name: str, value: Any, body: Eval) -> Any:
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


def _elements(target: Eval, scope: EvaluationScope) -> list[Any]:
    held = target(scope)
    if not isinstance(held, list | dict):
        raise CelEvaluationError(NO_OVERLOAD)
    return list(held)


def _quantifier(decides: bool) -> Callable[[TypedEval, str, CelType, list[TypedEval]], TypedEval]:
    """`exists` is decided by a true element, `all` by a false one; errors of others are then ignored."""

    def build(target: TypedEval, variable: str, item: CelType, bodies: list[TypedEval]) -> TypedEval:
        def run(scope: EvaluationScope) -> bool:
            failed: CelEvaluationError | None = None
            for value in _elements(target.run, scope):
                try:
                    if truth(with_variable(scope, variable, value, bodies[0].run)) is decides:
                        return decides
                except CostLimitExceeded:
                    raise
                except CelEvaluationError as error:
                    failed = error
            if failed is not None:
                raise failed
            return not decides

        return TypedEval(BOOL, run)

    return build


def _exists_one(target: TypedEval, variable: str, item: CelType, bodies: list[TypedEval]) -> TypedEval:
    def run(scope: EvaluationScope) -> bool:
        values = _elements(target.run, scope)
        return sum(truth(with_variable(scope, variable, value, bodies[0].run)) for value in values) == 1

    return TypedEval(BOOL, run)


def _map(target: TypedEval, variable: str, item: CelType, bodies: list[TypedEval]) -> TypedEval:
    *tests, body = bodies

    def run(scope: EvaluationScope) -> list[Any]:
        values = _elements(target.run, scope)
        kept = [v for v in values if all(truth(with_variable(scope, variable, v, t.run)) for t in tests)]
        return [with_variable(scope, variable, value, body.run) for value in kept]

    return TypedEval(list_of(body.type), run)


def _filter(target: TypedEval, variable: str, item: CelType, bodies: list[TypedEval]) -> TypedEval:
    def run(scope: EvaluationScope) -> list[Any]:
        values = _elements(target.run, scope)
        return [value for value in values if truth(with_variable(scope, variable, value, bodies[0].run))]

    return TypedEval(list_of(item), run)


MACROS: Mapping[str, Callable[[TypedEval, str, CelType, list[TypedEval]], TypedEval]] = {
    "all": _quantifier(False),
    "exists": _quantifier(True),
    "exists_one": _exists_one,
    "map": _map,
    "filter": _filter,
}
