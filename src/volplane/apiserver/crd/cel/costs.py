"""The largest cost of an expression, estimated before it ever runs (see `function_costs` for single calls).

As upstream's estimator: it follows the paths of values through the declared schema, because the limits there
(`maxItems`, `maxLength`) say how often a macro runs and how much text a function reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, assert_never

from volplane.apiserver.crd.cel.compiler import CompileNotes
from volplane.apiserver.crd.cel.declared_sizes import DeclaredSize
from volplane.apiserver.crd.cel.estimates import LARGEST, NONE_YET, ONE, UNKNOWN, ZERO, Estimate, exactly
from volplane.apiserver.crd.cel.function_costs import CallCost, Operand, call_cost
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
from volplane.apiserver.crd.cel.types import DYN, CelType

_LIST_COST, _MAP_COST = exactly(10), exactly(30)
_ADDED = 12  # of `map`, per element: a list of one, and a sum
_SCALARS = ("bool", "int", "double", "timestamp", "duration")
_PREFIXES = ("optional", "ip_namespace", "format_namespace")  # of names of functions


class _Entries(NamedTuple):
    """The sizes of the elements of a computed list or map."""

    is_list: bool
    key: Estimate
    value: Estimate

    def union(self, other: _Entries) -> _Entries:
        return _Entries(self.is_list, self.key.union(other.key), self.value.union(other.value))


class ValuePath:
    """The variable and the fields that lead to a value.

    It behaves like a slice in Go that paths are appended to: two longer ones may share their memory, and the
    one made last then overwrites the other. Upstream's numbers come from that, and some are far too small:
    with correct ones, rules would be refused that every other cluster accepts.
    """

    __slots__ = ("_length", "_memory")

    def __init__(self, memory: list[str], length: int) -> None:
        self._memory = memory
        self._length = length

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._memory[: self._length])

    def then(self, name: str) -> ValuePath:
        memory, length = self._memory, self._length
        if length == len(memory):
            memory = [*memory, *[""] * max(length, 1)]
        memory[length] = name
        return ValuePath(memory, length + 1)


_NO_PATH = ValuePath([], 0)


class _Variable(NamedTuple):
    path: ValuePath
    size: Estimate | None = None


class CostEstimator:
    """Walks over one expression; what it has found is kept by the `id` of a node."""

    def __init__(self, notes: CompileNotes, declared: DeclaredSize) -> None:
        self._notes = notes
        self._declared = declared
        self._paths: dict[int, ValuePath] = {}
        self._sizes: dict[int, Estimate] = {}
        self._entries: dict[int, _Entries] = {}
        self._variables: dict[str, _Variable] = {}

    def cost(self, node: Expr) -> Estimate:
        match node:
            case LiteralExpr():
                return ZERO
            case IdentExpr(_, name):
                variable = self._variables.get(name)
                self._paths[id(node)] = _NO_PATH.then(name) if variable is None else variable.path
                return ONE
            case SelectExpr():
                return self._select(node)
            case IndexExpr():
                return self._index(node)
            case CallExpr():
                return self._call(node)
            case ListExpr(_, items):
                return self._list(node, items)
            case MapExpr(_, entries):
                return self._map_literal(node, entries)
            case MacroExpr():
                return self._macro(node)
        assert_never(node)

    # Sizes

    def _type(self, node: Expr) -> CelType:
        return self._notes.types.get(id(node), DYN)

    def _path(self, node: Expr) -> ValuePath:
        return self._paths.get(id(node), _NO_PATH)

    def _size(self, node: Expr) -> Estimate | None:
        if id(node) in self._sizes:
            return self._sizes[id(node)]
        match node:
            case LiteralExpr(_, value):
                return exactly(len(value) if isinstance(value, str | bytes) else 1)
            case ListExpr(_, parts) | MapExpr(_, parts):
                return exactly(len(parts))
        size = self._declared_size(self._path(node).names)
        if size is not None:
            self._sizes[id(node)] = size
            return size
        if _is_scalar(self._type(node)):
            return ONE
        variable = self._variables.get(node.name) if isinstance(node, IdentExpr) else None
        return None if variable is None else variable.size

    def _declared_size(self, path: tuple[str, ...]) -> Estimate | None:
        """The first name of a path is a variable, whatever it is bound to."""
        found = self._declared.at(path[1:]) if path else None
        return None if found is None else Estimate(0, found.longest)

    def _size_or_unknown(self, node: Expr) -> Estimate:
        size = self._size(node)
        return UNKNOWN if size is None else size

    def _operand(self, node: Expr) -> Operand:
        path = self._path(node).names
        item = self._declared_size((*path, "@items")) if path else None
        literal = node.value if isinstance(node, LiteralExpr) else None
        return Operand(self._type(node), self._size(node), UNKNOWN if item is None else item, literal)

    # Members

    def _select(self, node: SelectExpr) -> Estimate:
        cost = self.cost(node.operand)
        if node.test:
            return cost
        if node.optional:
            return cost.plus(ONE)
        held = self._type(node.operand)
        self._paths[id(node)] = self._path(node.operand).then(node.field)
        return cost.plus(ONE) if held.fields is not None or held.name == "map" else cost

    def _index(self, node: IndexExpr) -> Estimate:
        cost = ONE
        for part in (node.operand, node.index):
            cost = cost.plus(self.cost(part))
            self._size(part)  # kept from now on
        held = self._type(node.operand)
        if node.optional or held.name not in ("list", "map", "dyn"):
            return cost
        entries = self._entries.get(id(node.operand))
        size = entries.value if entries is not None else None
        step = "@items" if held.name == "list" else "@values"
        self._paths[id(node)] = self._path(node.operand).then(step)
        if size is None:
            size = self._size(node)
        if size is not None:
            self._sizes[id(node)] = size
        return cost

    # Calls

    def _call(self, node: CallExpr) -> Estimate:
        if node.function == "_?_:_":
            return self._choice(node)
        if node.function in ("_&&_", "_||_"):
            one, other = (self.cost(arg) for arg in node.args)
            return Estimate(one.low, one.plus(other).high)
        if node.function == "dyn":
            cost = self.cost(node.args[0])
            self._copy(node.args[0], node)
            return cost.plus(ONE)
        cost, args = ZERO, []
        for arg in node.args:
            cost = cost.plus(self.cost(arg))
            args.append(self._operand(arg))
        if node.target is not None:
            is_prefix = self._type(node.target).name in _PREFIXES
            cost = cost if is_prefix else cost.plus(self.cost(node.target))
            args.insert(0, self._operand(node.target))
        if node.function == "_+_":
            self._join_entries(node, node.args)
        found = [call_cost(overload, args) for overload in self._notes.overloads[id(node)]]
        return cost.plus(self._include(node, found))

    def _include(self, node: Expr, found: Sequence[CallCost]) -> Estimate:
        """All overloads that may be chosen at run time are included."""
        cost, size = NONE_YET, None
        for one in found:
            cost = cost.union(one.cost)
            if one.size is not None:
                size = one.size if size is None else size.union(one.size)
            if size is None:
                size = self._size(node)
        if size is not None:
            self._sizes[id(node)] = size
        return cost

    def _choice(self, node: CallExpr) -> Estimate:
        condition, cost, size = self.cost(node.args[0]), NONE_YET, NONE_YET
        for arg in node.args[1:]:
            cost = cost.union(self.cost(arg))
            size = size.union(self._size_or_unknown(arg))
        self._sizes[id(node)] = size
        self._join_entries(node, node.args[1:])
        return condition.plus(cost)

    def _join_entries(self, node: Expr, parts: Sequence[Expr]) -> None:
        one, other = (self._entries.get(id(part)) for part in parts)
        if one is not None and other is not None:
            self._entries[id(node)] = one.union(other)

    def _copy(self, source: Expr, node: Expr) -> None:
        size = self._size(source)
        if size is not None:
            self._sizes[id(node)] = size
        if id(source) in self._entries:
            self._entries[id(node)] = self._entries[id(source)]

    # Literals

    def _list(self, node: ListExpr, items: Sequence[Expr]) -> Estimate:
        cost = _LIST_COST
        for item in items:
            cost = cost.plus(self.cost(item))
        self._entries[id(node)] = _Entries(True, ONE, self._common_size(items))
        return cost

    def _map_literal(self, node: MapExpr, entries: Sequence[tuple[Expr, Expr]]) -> Estimate:
        cost = _MAP_COST
        for key, value in entries:
            cost = cost.plus(self.cost(key)).plus(self.cost(value))
        keys, values = [key for key, _ in entries], [value for _, value in entries]
        self._entries[id(node)] = _Entries(False, self._common_size(keys), self._common_size(values))
        return cost

    def _common_size(self, nodes: Sequence[Expr]) -> Estimate:
        size = NONE_YET if nodes else ZERO
        for node in nodes:
            size = size.union(self._size_or_unknown(node))
        return size

    # Macros

    def _macro(self, node: MacroExpr) -> Estimate:
        cost = self.cost(node.target)
        if node.name in ("optMap", "optFlatMap"):
            return self._opt_map(node, cost)
        element = self._element(node.target)
        with self._bind(node.variable, element):
            per_element, around = self._loop(node)
            kept = self._size_or_unknown(node.bodies[-1])
        times = self._size_or_unknown(node.target)
        if node.name == "filter":
            kept = self._element_size(node.target, element)
        if node.name in ("map", "filter"):
            self._sizes[id(node)] = times
            self._entries[id(node)] = _Entries(True, ONE, Estimate(0, kept.high))
        else:
            self._sizes[id(node)] = ONE
        return cost.plus(around).plus(times.times(per_element))

    def _loop(self, node: MacroExpr) -> tuple[Estimate, Estimate]:
        costs = []
        for body in node.bodies:
            costs.append(self.cost(body))
            self._size(body)  # kept from now on
        return _loop_cost(node.name, costs)

    def _element(self, target: Expr) -> _Variable:
        """What a macro binds its variable to: the elements of a list, the keys of a map."""
        entries = self._entries.get(id(target))
        is_list = entries.is_list if entries is not None else self._type(target).name == "list"
        size = None if entries is None else (entries.value if is_list else entries.key)
        return _Variable(self._path(target).then("@items" if is_list else "@keys"), size)

    def _element_size(self, target: Expr, variable: _Variable) -> Estimate:
        size = self._declared_size(variable.path.names)
        if size is None:
            [item] = self._type(target).inner[:1] or (DYN,)
            size = ONE if _is_scalar(item) else variable.size
        return UNKNOWN if size is None else size

    def _opt_map(self, node: MacroExpr, target: Estimate) -> Estimate:
        """The target is computed twice."""
        unwrapped = target.plus(ONE)
        held = self._type(node.target)
        size = ONE if held.inner and _is_scalar(held.inner[0]) else None
        with self._bind(node.variable, _Variable(_NO_PATH, size)):
            then = _LIST_COST.plus(unwrapped).plus(self.cost(node.bodies[0]))
        if node.name == "optMap":
            then = then.plus(ONE)
        return unwrapped.plus(then.union(ONE))

    @contextmanager
    def _bind(self, name: str, variable: _Variable) -> Iterator[None]:
        before = self._variables
        self._variables = {**before, name: variable}
        try:
            yield
        finally:
            self._variables = before


def _loop_cost(name: str, bodies: Sequence[Estimate]) -> tuple[Estimate, Estimate]:
    """The cost of each round, and that of the steps before and after all rounds."""
    first = bodies[0]
    match name:
        case "all":
            return Estimate(3, min(first.high + 3, LARGEST)), ONE
        case "exists":
            return Estimate(4, min(first.high + 4, LARGEST)), ONE
        case "exists_one":
            return first.plus(Estimate(1, 2)), exactly(2)
        case "filter":
            return first.plus(Estimate(1, _ADDED + 1)), _LIST_COST.plus(ONE)
    added = bodies[-1].plus(exactly(_ADDED))
    return (added if len(bodies) == 1 else first.plus(added.union(ONE))), _LIST_COST.plus(ONE)


def _is_scalar(type: CelType) -> bool:
    return type.name in _SCALARS or (type.name == "optional_type" and _is_scalar(type.inner[0]))
