"""An expression as a tree. `at` is where in the source a complaint about a node points."""

from __future__ import annotations

from typing import Any, Union

from msgspec import Struct


class Literal(Struct, frozen=True):
    at: int
    value: Any


class Ident(Struct, frozen=True):
    at: int
    name: str


class Select(Struct, frozen=True):
    """`operand.field`; with `test` it is `has(operand.field)`, with `optional` it is `operand.?field`."""

    at: int
    operand: Node
    field: str
    test: bool = False
    optional: bool = False


class Index(Struct, frozen=True):
    """`operand[index]`, or `operand[?index]`."""

    at: int
    operand: Node
    index: Node
    optional: bool = False


class Call(Struct, frozen=True):
    """A function or an operator; a method has a target."""

    at: int
    function: str
    target: Node | None
    args: tuple[Node, ...]


class Items(Struct, frozen=True):
    at: int
    items: tuple[Node, ...]


class Entries(Struct, frozen=True):
    at: int
    entries: tuple[tuple[Node, Node], ...]


class Macro(Struct, frozen=True):
    """`target.all(variable, body)` and its like: the body runs once per element."""

    at: int
    name: str
    target: Node
    variable: str
    bodies: tuple[Node, ...]


Node = Union[Literal, Ident, Select, Index, Call, Items, Entries, Macro]  # noqa: UP007 - refers to itself


def names(node: Node) -> set[str]:
    """The identifiers that occur in an expression, bound or not."""
    match node:
        case Ident(_, name):
            return {name}
        case Literal():
            return set()
        case Select(_, operand):
            return names(operand)
        case Index(_, operand, index):
            return names(operand) | names(index)
        case Call(_, _, target, args):
            return _all(args) | (names(target) if target is not None else set())
        case Items(_, items):
            return _all(items)
        case Entries(_, entries):
            return _all(tuple(part for entry in entries for part in entry))
        case Macro(_, _, target, _, bodies):
            return names(target) | _all(bodies)


def _all(nodes: tuple[Node, ...]) -> set[str]:
    return {name for node in nodes for name in names(node)}
