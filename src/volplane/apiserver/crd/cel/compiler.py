"""Expressions become functions: each node is typed, and turned into a closure over its parts.

Types are checked as far as they are known, so that a misspelt field is found when a kind is defined and not
when the first object comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from volplane.apiserver.crd.cel import running, types
from volplane.apiserver.crd.cel.errors import NO_OVERLOAD, Failure, Flaw
from volplane.apiserver.crd.cel.library import Overload, element, overloads
from volplane.apiserver.crd.cel.nodes import Call, Entries, Ident, Index, Items, Literal, Macro, Node, Select
from volplane.apiserver.crd.cel.running import Eval, Scope, Typed
from volplane.apiserver.crd.cel.types import (
    BOOL,
    DYN,
    INT,
    Bindings,
    Type,
    bind,
    fits,
    optional_of,
)
from volplane.apiserver.crd.cel.values import Maybe, Namespace, type_of

_CONSTANTS: Mapping[str, Any] = {
    **{
        name: Type(name)
        for name in ("bool", "int", "double", "string", "bytes", "list", "map", "null_type", "type")
    },
    "optional": Namespace(),
}


def compile(node: Node, variables: Mapping[str, Type]) -> Typed:
    """Raises Flaw."""
    return _Compiler(dict(variables)).node(node)


class _Compiler:
    def __init__(self, variables: dict[str, Type]) -> None:
        self._variables = variables

    def node(self, node: Node) -> Typed:
        match node:
            case Literal(_, value):
                return Typed(type_of(value), lambda scope: value)
            case Ident():
                return self._ident(node)
            case Select():
                return self._select(node)
            case Index():
                return self._index(node)
            case Call():
                return self._call(node)
            case Items(_, items):
                return running.items([self.node(item) for item in items])
            case Entries(_, entries):
                return running.entries([(self.node(key), self.node(value)) for key, value in entries])
            case Macro():
                return self._macro(node)
        assert_never(node)

    def _ident(self, node: Ident) -> Typed:
        name = node.name
        if name in self._variables:
            return Typed(self._variables[name], lambda scope: scope.values[name])
        if name in _CONSTANTS:
            value = _CONSTANTS[name]
            return Typed(type_of(value), lambda scope: value)
        raise Flaw(f"undeclared reference to '{name}' (in container '')", node.at)

    # Members

    def _select(self, node: Select) -> Typed:
        operand = self.node(node.operand)
        held = _inside(operand.type)
        found = _field_type(held, node)
        if node.test:
            return Typed(BOOL, running.has(operand.run, node.field))
        if node.optional or operand.type.name == "optional_type":
            return Typed(optional_of(found), running.maybe(operand.run, node.field))
        return Typed(found, running.selected(operand.run, node.field))

    def _index(self, node: Index) -> Typed:
        operand, index = self.node(node.operand), self.node(node.index)
        held = _inside(operand.type)
        wanted, found = _element_type(held)
        if wanted is None or not (
            fits(wanted, index.type, {}) or (wanted == INT and index.type == types.DOUBLE)
        ):
            raise _mismatch(node.at, "_[_]", [operand.type, index.type])
        if node.optional or operand.type.name == "optional_type":
            return Typed(optional_of(found), running.maybe_element(operand.run, index.run))
        return Typed(found, lambda scope: element(operand.run(scope), index.run(scope)))

    # Calls

    def _call(self, node: Call) -> Typed:
        if node.function in ("_&&_", "_||_"):
            return self._logic(node)
        if node.function == "_?_:_":
            return self._choice(node)
        member = node.target is not None
        known = overloads().get((node.function, member))
        if known is None:
            raise Flaw(f"undeclared reference to '{node.function}' (in container '')", node.at)
        args = [self.node(arg) for arg in ((node.target,) if node.target is not None else ()) + node.args]
        return _resolved(node, known, args)

    def _logic(self, node: Call) -> Typed:
        one, other = (self._bool(node, arg) for arg in node.args)
        return Typed(BOOL, running.both_ways(one.run, other.run, decides=node.function == "_||_"))

    def _bool(self, node: Call, arg: Node) -> Typed:
        made = self.node(arg)
        if not fits(BOOL, made.type, {}):
            raise Flaw(f"expected type 'bool' but found '{made.type}'", arg.at)
        return made

    def _choice(self, node: Call) -> Typed:
        condition = self._bool(node, node.args[0])
        then, otherwise = self.node(node.args[1]), self.node(node.args[2])
        bound: Bindings = {}
        if not (fits(Type("A"), then.type, bound) and fits(Type("A"), otherwise.type, bound)):
            raise _mismatch(node.at, "_?_:_", [condition.type, then.type, otherwise.type])
        made = DYN if DYN in (then.type, otherwise.type) else bound["A"]
        return Typed(
            made, lambda scope: (then if running.truth(condition.run(scope)) else otherwise).run(scope)
        )

    # Macros

    def _macro(self, node: Macro) -> Typed:
        target = self.node(node.target)
        if node.name in ("optMap", "optFlatMap"):
            return self._opt_map(node, target)
        item = _element_of(target.type)
        if item is None:
            text = f"expression of type '{target.type}' cannot be range of a comprehension"
            raise Flaw(f"{text} (must be list, map, or dynamic)", node.at)
        bodies = self._bound(node, item)
        tests = bodies[:-1] if node.name == "map" else bodies
        for body, source in zip(tests, node.bodies, strict=False):
            if not fits(BOOL, body.type, {}):
                raise Flaw(f"expected type 'bool' but found '{body.type}'", source.at)
        return running.MACROS[node.name](target, node.variable, item, bodies)

    def _opt_map(self, node: Macro, target: Typed) -> Typed:
        if target.type.name not in ("optional_type", "dyn"):
            raise _mismatch(node.at, node.name, [target.type])
        [body] = self._bound(node, _inside(target.type))
        flat = node.name == "optFlatMap"

        def run(scope: Scope) -> Any:
            given = target.run(scope)
            if not isinstance(given, Maybe):
                raise Failure(NO_OVERLOAD)
            if not given.is_set:
                return given
            made = running.bound(scope, node.variable, given.value, body.run)
            return made if flat else Maybe(made)

        return Typed(optional_of(body.type), run)

    def _bound(self, node: Macro, item: Type) -> list[Typed]:
        """The bodies, in which the variable stands for an element."""
        inner = _Compiler({**self._variables, node.variable: item})
        return [running.paid(inner.node(body), body) for body in node.bodies]


# Types of members


def _inside(type: Type) -> Type:
    return type.inner[0] if type.name == "optional_type" else type


def _field_type(held: Type, node: Select) -> Type:
    if held.fields is not None:
        found = held.fields.get(node.field)
        if found is None:
            raise Flaw(f"undefined field '{node.field}'", node.at)
        return found
    if held.name == "map":
        return held.inner[1]
    if held == DYN:
        return DYN
    raise Flaw(f"type '{held}' does not support field selection", node.at)


def _element_type(held: Type) -> tuple[Type | None, Type]:
    """What indexes this type, and what comes out."""
    if held.name == "list":
        return INT, held.inner[0]
    if held.name == "map":
        return held.inner[0], held.inner[1]
    return (DYN, DYN) if held == DYN else (None, DYN)


def _element_of(type: Type) -> Type | None:
    """What a macro goes through: elements of a list, keys of a map."""
    if type.name in ("list", "map"):
        return type.inner[0]
    return DYN if type == DYN else None


def _mismatch(at: int, function: str, args: list[Type], member: bool = False) -> Flaw:
    shown = [str(arg) for arg in args]
    applied = f"{shown[0]}.({', '.join(shown[1:])})" if member else f"({', '.join(shown)})"
    return Flaw(f"found no matching overload for '{function}' applied to '{applied}'", at)


# Functions


def _resolved(node: Call, known: list[Overload], args: list[Typed]) -> Typed:
    given = [arg.type for arg in args]
    found: list[tuple[Overload, Bindings]] = []
    for overload in known:
        bound: Bindings = {}
        if len(overload.args) == len(given) and all(
            fits(wanted, type, bound) for wanted, type in zip(overload.args, given, strict=True)
        ):
            found.append((overload, bound))
    if not found:
        raise _mismatch(node.at, node.function, given, node.target is not None)
    results = [bind(overload.result, bound) for overload, bound in found]
    made = results[0] if all(r == results[0] for r in results) else DYN
    runs = tuple(arg.run for arg in args)
    dynamic = len(found) > 1 or any(
        type == DYN and not w.is_variable for type, w in zip(given, found[0][0].args, strict=True)
    )
    return Typed(made, _dispatched([o for o, _ in found], runs) if dynamic else _direct(found[0][0], runs))


def _direct(overload: Overload, args: tuple[Eval, ...]) -> Eval:
    function = overload.run

    def run(scope: Scope) -> Any:
        scope.budget.spend()
        return function(scope.budget, *[arg(scope) for arg in args])

    return run


def _dispatched(known: list[Overload], args: tuple[Eval, ...]) -> Eval:
    """By the types the values turn out to have."""

    def run(scope: Scope) -> Any:
        scope.budget.spend()
        values = [arg(scope) for arg in args]
        given = [type_of(value) for value in values]
        for overload in known:
            bound: Bindings = {}
            if all(fits(wanted, type, bound) for wanted, type in zip(overload.args, given, strict=True)):
                return overload.run(scope.budget, *values)
        raise Failure(NO_OVERLOAD)

    return run
