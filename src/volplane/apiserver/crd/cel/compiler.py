"""Compile an expression: determine the type of each node and turn it into a closure.

Types are checked as far as they are known, so that a misspelt field is reported when the CRD is created, not
when the first object is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from volplane.apiserver.crd.cel import evaluation, types
from volplane.apiserver.crd.cel.errors import NO_OVERLOAD, CelCompileError, CelEvaluationError
from volplane.apiserver.crd.cel.evaluation import Eval, EvaluationScope, TypedEval
from volplane.apiserver.crd.cel.library import Overload, element, overloads
from volplane.apiserver.crd.cel.nodes import (
    CallExpr,
    Expr,
    IdentExpr,
    IndexExpr,
    ListExpr,
    LiteralExpr,
    MacroExpr,
    MapExpr,
    SelectExpr,
)
from volplane.apiserver.crd.cel.types import (
    BOOL,
    DYN,
    INT,
    Bindings,
    CelType,
    bind,
    fits,
    optional_of,
)
from volplane.apiserver.crd.cel.values import CelNamespace, OptionalValue, type_of

_CONSTANTS: Mapping[str, Any] = {
    **{
        name: CelType(name)
        for name in ("bool", "int", "double", "string", "bytes", "list", "map", "null_type", "type")
    },
    "optional": CelNamespace("optional"),
    "ip": CelNamespace("ip_namespace"),
    "format": CelNamespace("format_namespace"),
}


class CompileNotes:
    """What the compiler has found out about each node, by the node's `id`."""

    def __init__(self) -> None:
        self.types: dict[int, CelType] = {}
        self.overloads: dict[int, list[Overload]] = {}  # those that fit; several if a type is not known


def compile(node: Expr, variables: Mapping[str, CelType], notes: CompileNotes | None = None) -> TypedEval:
    """Raise CelCompileError."""
    return _Compiler(dict(variables), notes or CompileNotes()).node(node)


class _Compiler:
    def __init__(self, variables: dict[str, CelType], notes: CompileNotes) -> None:
        self._variables = variables
        self._notes = notes

    def node(self, node: Expr) -> TypedEval:
        made = self._node(node)
        self._notes.types[id(node)] = made.type
        return made

    def _node(self, node: Expr) -> TypedEval:
        match node:
            case LiteralExpr(_, value):
                return TypedEval(type_of(value), lambda scope: value)
            case IdentExpr():
                return self._ident(node)
            case SelectExpr():
                return self._select(node)
            case IndexExpr():
                return self._index(node)
            case CallExpr():
                return self._call(node)
            case ListExpr(_, items):
                return evaluation.list_literal([self.node(item) for item in items])
            case MapExpr(_, entries):
                return evaluation.map_literal([(self.node(key), self.node(value)) for key, value in entries])
            case MacroExpr():
                return self._macro(node)
        assert_never(node)

    def _ident(self, node: IdentExpr) -> TypedEval:
        name = node.name
        if name in self._variables:
            return TypedEval(self._variables[name], lambda scope: scope.values[name])
        if name in _CONSTANTS:
            value = _CONSTANTS[name]
            return TypedEval(type_of(value), lambda scope: value)
        raise CelCompileError(f"undeclared reference to '{name}' (in container '')", node.at)

    # Members

    def _select(self, node: SelectExpr) -> TypedEval:
        operand = self.node(node.operand)
        held = _unwrap_optional(operand.type)
        found = _field_type(held, node)
        if node.test:
            return TypedEval(BOOL, evaluation.has(operand.run, node.field))
        if node.optional or operand.type.name == "optional_type":
            return TypedEval(optional_of(found), evaluation.maybe(operand.run, node.field))
        return TypedEval(found, evaluation.select(operand.run, node.field))

    def _index(self, node: IndexExpr) -> TypedEval:
        operand, index = self.node(node.operand), self.node(node.index)
        held = _unwrap_optional(operand.type)
        wanted, found = _element_type(held)
        if wanted is None or not (
            fits(wanted, index.type, {}) or (wanted == INT and index.type == types.DOUBLE)
        ):
            raise _mismatch(node.at, "_[_]", [operand.type, index.type])
        if node.optional or operand.type.name == "optional_type":
            return TypedEval(optional_of(found), evaluation.maybe_element(operand.run, index.run))
        return TypedEval(found, lambda scope: element(operand.run(scope), index.run(scope)))

    # Calls

    def _call(self, node: CallExpr) -> TypedEval:
        if node.function in ("_&&_", "_||_"):
            return self._logic(node)
        if node.function == "_?_:_":
            return self._choice(node)
        member = node.target is not None
        known = overloads().get((node.function, member))
        if known is None:
            raise CelCompileError(f"undeclared reference to '{node.function}' (in container '')", node.at)
        args = [self.node(arg) for arg in ((node.target,) if node.target is not None else ()) + node.args]
        made, found = _resolve_overload(node, known, args)
        self._notes.overloads[id(node)] = found
        return made

    def _logic(self, node: CallExpr) -> TypedEval:
        one, other = (self._bool(node, arg) for arg in node.args)
        return TypedEval(BOOL, evaluation.short_circuit(one.run, other.run, decides=node.function == "_||_"))

    def _bool(self, node: CallExpr, arg: Expr) -> TypedEval:
        made = self.node(arg)
        if not fits(BOOL, made.type, {}):
            raise CelCompileError(f"expected type 'bool' but found '{made.type}'", arg.at)
        return made

    def _choice(self, node: CallExpr) -> TypedEval:
        condition = self._bool(node, node.args[0])
        then, otherwise = self.node(node.args[1]), self.node(node.args[2])
        bound: Bindings = {}
        if not (fits(CelType("A"), then.type, bound) and fits(CelType("A"), otherwise.type, bound)):
            raise _mismatch(node.at, "_?_:_", [condition.type, then.type, otherwise.type])
        made = DYN if DYN in (then.type, otherwise.type) else bound["A"]
        return TypedEval(
            made, lambda scope: (then if evaluation.truth(condition.run(scope)) else otherwise).run(scope)
        )

    # Macros

    def _macro(self, node: MacroExpr) -> TypedEval:
        target = self.node(node.target)
        if node.name in ("optMap", "optFlatMap"):
            return self._opt_map(node, target)
        item = _element_of(target.type)
        if item is None:
            text = f"expression of type '{target.type}' cannot be range of a comprehension"
            raise CelCompileError(f"{text} (must be list, map, or dynamic)", node.target.at)
        bodies = self._compile_bodies(node, item)
        tests = bodies[:-1] if node.name == "map" else bodies
        for body, source in zip(tests, node.bodies, strict=False):
            if not fits(BOOL, body.type, {}):
                raise CelCompileError(f"expected type 'bool' but found '{body.type}'", source.at)
        return evaluation.MACROS[node.name](target, node.variable, item, bodies)

    def _opt_map(self, node: MacroExpr, target: TypedEval) -> TypedEval:
        if target.type.name not in ("optional_type", "dyn"):
            raise _mismatch(node.at, node.name, [target.type])
        [body] = self._compile_bodies(node, _unwrap_optional(target.type))
        flat = node.name == "optFlatMap"

        def run(scope: EvaluationScope) -> Any:
            given = target.run(scope)
            if not isinstance(given, OptionalValue):
                raise CelEvaluationError(NO_OVERLOAD)
            if not given.is_set:
                return given
            made = evaluation.with_variable(scope, node.variable, given.value, body.run)
            return made if flat else OptionalValue(made)

        return TypedEval(optional_of(body.type), run)

    def _compile_bodies(self, node: MacroExpr, item: CelType) -> list[TypedEval]:
        """Compile the bodies of a macro, with its variable bound to an element."""
        inner = _Compiler({**self._variables, node.variable: item}, self._notes)
        return [evaluation.charge_for_length(inner.node(body), body) for body in node.bodies]


# Types of members


def _unwrap_optional(type: CelType) -> CelType:
    return type.inner[0] if type.name == "optional_type" else type


def _field_type(held: CelType, node: SelectExpr) -> CelType:
    if held.fields is not None:
        found = held.fields.get(node.field)
        if found is None:
            raise CelCompileError(f"undefined field '{node.field}'", node.at)
        return found
    if held.name == "map":
        return held.inner[1]
    if held == DYN:
        return DYN
    raise CelCompileError(f"type '{held}' does not support field selection", node.at)


def _element_type(held: CelType) -> tuple[CelType | None, CelType]:
    """Return the type of the index, and of the element."""
    if held.name == "list":
        return INT, held.inner[0]
    if held.name == "map":
        return held.inner[0], held.inner[1]
    return (DYN, DYN) if held == DYN else (None, DYN)


def _element_of(type: CelType) -> CelType | None:
    """Return the type that a macro iterates over: elements of a list, keys of a map."""
    if type.name in ("list", "map"):
        return type.inner[0]
    return DYN if type == DYN else None


def _mismatch(at: int, function: str, args: list[CelType], member: bool = False) -> CelCompileError:
    shown = [str(arg) for arg in args]
    applied = f"{shown[0]}.({', '.join(shown[1:])})" if member else f"({', '.join(shown)})"
    return CelCompileError(f"found no matching overload for '{function}' applied to '{applied}'", at)


# Functions


def _resolve_overload(
    node: CallExpr, known: list[Overload], args: list[TypedEval]
) -> tuple[TypedEval, list[Overload]]:
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
    fitting = [overload for overload, _ in found]
    run = _dispatch(fitting, runs) if dynamic else _direct(fitting[0], runs)
    return TypedEval(made, run), fitting


def _direct(overload: Overload, args: tuple[Eval, ...]) -> Eval:
    function = overload.run

    def run(scope: EvaluationScope) -> Any:
        scope.budget.spend()
        return function(scope.budget, *[arg(scope) for arg in args])

    return run


def _dispatch(known: list[Overload], args: tuple[Eval, ...]) -> Eval:
    """Choose the overload by the types of the values at run time."""

    def run(scope: EvaluationScope) -> Any:
        scope.budget.spend()
        values = [arg(scope) for arg in args]
        given = [type_of(value) for value in values]
        for overload in known:
            bound: Bindings = {}
            if all(fits(wanted, type, bound) for wanted, type in zip(overload.args, given, strict=True)):
                return overload.run(scope.budget, *values)
        raise CelEvaluationError(NO_OVERLOAD)

    return run
