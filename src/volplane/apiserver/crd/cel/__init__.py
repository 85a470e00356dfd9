"""CEL, the language of validation rules: a small compiler and evaluator.

    program = compile("size(self.name) > 0", {"self": object_of({"name": STRING})})
    program.run({"self": CelObject(name="x")}, CostBudget(1000))

Source becomes tokens (`lexer`), a tree (`parser`, `nodes`), and a typed function (`compiler`, `evaluation`,
`types`, `library`, `kubernetes`); `schema_types` converts schemas to types and JSON values to CEL values.
`costs` estimates what an expression can cost, before it runs. Not supported: unsigned numbers, messages and
time zones. A definition that uses them is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from volplane.apiserver.crd.cel import nodes, parser
from volplane.apiserver.crd.cel.compiler import CompileNotes
from volplane.apiserver.crd.cel.compiler import compile as _compile
from volplane.apiserver.crd.cel.costs import CostEstimator
from volplane.apiserver.crd.cel.declared_sizes import DeclaredSize
from volplane.apiserver.crd.cel.errors import CelCompileError, CelEvaluationError, CostLimitExceeded
from volplane.apiserver.crd.cel.evaluation import Eval, EvaluationScope, charge_for_length
from volplane.apiserver.crd.cel.types import CelType
from volplane.apiserver.crd.cel.values import CostBudget, OptionalValue

__all__ = [
    "CelCompileError", "CelEvaluationError", "CelProgram", "CelType", "CostBudget", "CostLimitExceeded",
    "OptionalValue", "compile", "estimate_cost",
]  # fmt: skip


class CelProgram(Struct, frozen=True):
    """A compiled expression."""

    type: CelType
    names: frozenset[str]  # the variables it uses
    evaluate: Eval

    def run(self, values: Mapping[str, Any], budget: CostBudget) -> Any:
        """Raise CelEvaluationError."""
        try:
            return self.evaluate(EvaluationScope(dict(values), budget))
        except RecursionError as error:
            raise CelEvaluationError("evaluation is nested too deeply") from error


def compile(source: str, variables: Mapping[str, CelType]) -> CelProgram:
    """Raise CelCompileError."""
    try:
        tree = parser.parse(source)
        result = charge_for_length(_compile(tree, variables), tree)
    except RecursionError as error:
        raise CelCompileError("expression recursion limit exceeded", 0) from error
    return CelProgram(result.type, frozenset(nodes.identifiers(tree)), result.run)


def estimate_cost(source: str, variables: Mapping[str, CelType], self_size: DeclaredSize) -> int:
    """Return the most that an expression which compiles can cost, in upstream's units."""
    tree, notes = parser.parse(source), CompileNotes()
    _compile(tree, variables, notes)
    return CostEstimator(notes, self_size).cost(tree).high
