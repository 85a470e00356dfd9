"""CEL, the language of validation rules: a small compiler and what it needs.

    program = compile("size(self.name) > 0", {"self": object_of({"name": STRING})})
    program.run({"self": Obj(name="x")}, Budget(1000))

Source becomes words (`lexer`), a tree (`parser`, `nodes`), a typed function (`compiler`, `running`, `types`,
`library`); `declare` gives schemas types and JSON values their form. Not here: unsigned numbers, messages,
time zones, and the libraries for URLs, addresses and quantities; an expression with those is refused when a
kind is defined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from volplane.apiserver.crd.cel import nodes, parser
from volplane.apiserver.crd.cel.compiler import compile as _compile
from volplane.apiserver.crd.cel.errors import Exhausted, Failure, Flaw
from volplane.apiserver.crd.cel.running import Eval, Scope, paid
from volplane.apiserver.crd.cel.types import Type
from volplane.apiserver.crd.cel.values import Budget, Maybe

__all__ = ["Budget", "Exhausted", "Failure", "Flaw", "Maybe", "Program", "Type", "compile"]


class Program(Struct, frozen=True):
    """A compiled expression."""

    type: Type
    names: frozenset[str]  # the variables it mentions
    evaluate: Eval

    def run(self, values: Mapping[str, Any], budget: Budget) -> Any:
        """Raises Failure."""
        try:
            return self.evaluate(Scope(dict(values), budget))
        except RecursionError as error:
            raise Failure("evaluation is nested too deeply") from error


def compile(source: str, variables: Mapping[str, Type]) -> Program:
    """Raises Flaw."""
    try:
        tree = parser.parse(source)
        made = paid(_compile(tree, variables), tree)
    except RecursionError as error:
        raise Flaw("expression recursion limit exceeded", 0) from error
    return Program(made.type, frozenset(nodes.names(tree)), made.run)
