"""An expression as a tree. `at` is where in the source a complaint about a node points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    return {part.name for part in parts(node) if isinstance(part, Ident)}


def parts(node: Node) -> Iterator[Node]:
    """A node and everything below it."""
    yield node
    for inner in _below(node):
        yield from parts(inner)


def _below(node: Node) -> Sequence[Node]:
    match node:
        case Select(_, operand):
            return (operand,)
        case Index(_, operand, index):
            return (operand, index)
        case Call(_, _, target, args):
            return args if target is None else (target, *args)
        case Items(_, items):
            return items
        case Entries(_, entries):
            return [part for entry in entries for part in entry]
        case Macro(_, _, target, _, bodies):
            return (target, *bodies)
    return ()
