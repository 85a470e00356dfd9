"""The syntax tree of an expression. `at` is the source position for error messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Union

from msgspec import Struct


class LiteralExpr(Struct, frozen=True):
    at: int
    value: Any


class IdentExpr(Struct, frozen=True):
    at: int
    name: str


class SelectExpr(Struct, frozen=True):
    """`operand.field`; with `test` it is `has(operand.field)`, with `optional` it is `operand.?field`."""

    at: int
    operand: Expr
    field: str
    test: bool = False
    optional: bool = False


class IndexExpr(Struct, frozen=True):
    """`operand[index]`, or `operand[?index]`."""

    at: int
    operand: Expr
    index: Expr
    optional: bool = False


class CallExpr(Struct, frozen=True):
    """A function or an operator; a method has a target."""

    at: int
    function: str
    target: Expr | None
    args: tuple[Expr, ...]


class ListExpr(Struct, frozen=True):
    at: int
    items: tuple[Expr, ...]


class MapExpr(Struct, frozen=True):
    at: int
    entries: tuple[tuple[Expr, Expr], ...]


class MacroExpr(Struct, frozen=True):
    """`target.all(variable, body)` and similar: the body runs once per element."""

    at: int
    name: str
    target: Expr
    variable: str
    bodies: tuple[Expr, ...]


Expr = Union[LiteralExpr, IdentExpr, SelectExpr, IndexExpr, CallExpr, ListExpr, MapExpr, MacroExpr]  # noqa: UP007 - refers to itself


def identifiers(node: Expr) -> set[str]:
    """Return the identifiers in an expression, bound or free."""
    return {part.name for part in walk_expr(node) if isinstance(part, IdentExpr)}


def walk_expr(node: Expr) -> Iterator[Expr]:
    """Yield a node and everything below it."""
    yield node
    for inner in _operands(node):
        yield from walk_expr(inner)


def _operands(node: Expr) -> Sequence[Expr]:
    match node:
        case SelectExpr(_, operand):
            return (operand,)
        case IndexExpr(_, operand, index):
            return (operand, index)
        case CallExpr(_, _, target, args):
            return args if target is None else (target, *args)
        case ListExpr(_, items):
            return items
        case MapExpr(_, entries):
            return [part for entry in entries for part in entry]
        case MacroExpr(_, _, target, _, bodies):
            return (target, *bodies)
    return ()
