"""Every reconciler has the same five parts: keys, view, plan, act, memory (docs/decisions/0030).

The rules are checked over all controllers that importing the rooms finds. Each rule is shown to fail on a
small class that breaks it.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

import volplane.controllers
import volplane.node.services
import volplane.node.volume_manager
import volplane.scheduler
import volplane.sidecars
from volplane.api.core import ConfigMap
from volplane.base.backoff import Backoff
from volplane.loops.controller import Controller

AnyController = type[Controller[Any, Any, Any]]

ROOMS = (
    volplane.controllers,
    volplane.node.services,
    volplane.node.volume_manager,
    volplane.sidecars,
    volplane.scheduler,
)
SETTINGS = ("workers", "backoff", "resync")  # passed to `super().__init__`, never assigned
PORTS = ("client", "queue", "events", "volumes_attached")  # to which a controller writes
MUTATORS = frozenset(
    (
        *("add", "append", "clear", "discard", "extend", "insert", "later", "pop", "popitem"),
        *("put", "remove", "setdefault", "subtract", "update"),
    )
)
# The garbage collector's caches come and go with the CustomResourceDefinitions of the cluster.
CHANGING = frozenset({("GarbageCollector", "caches"), ("GarbageCollector", "dependents")})


def controllers() -> list[AnyController]:
    for room in ROOMS:
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            import_module(module.name)
    return sorted(_subclasses(Controller), key=lambda each: (each.__module__, each.__name__))


def _subclasses(of: AnyController) -> Iterator[AnyController]:
    for each in of.__subclasses__():
        if each.__module__.startswith("volplane.") and each.name:
            yield each
        yield from _subclasses(each)


# --- how a class is read


class Parts:
    """The methods of a controller as syntax trees, its own and those of its bases below the frame."""

    def __init__(self, of: AnyController) -> None:
        self.of = of
        self.methods: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self.module = inspect.getmodule(of)
        for base in reversed(of.__mro__[: of.__mro__.index(Controller)]):
            if issubclass(base, Controller):
                tree = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
                assert isinstance(tree, ast.ClassDef)
                for node in tree.body:
                    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                        self.methods[node.name] = node

    def keys_functions(self) -> Iterator[ast.AST]:
        """What is passed as `keys` to `self.watch`, `self.follow` and `self.watch_source`."""
        watching = [("self", name) for name in ("watch", "follow", "watch_source")]
        for method in self.methods.values():
            for call in ast.walk(method):
                if isinstance(call, ast.Call) and _path(call.func) in watching:
                    named = [keyword.value for keyword in call.keywords if keyword.arg == "keys"]
                    for given in (*call.args[1:2], *named):
                        yield from self._resolve(given)

    def _resolve(self, given: ast.AST) -> Iterator[ast.AST]:
        path = _path(given.func if isinstance(given, ast.Call) else given)
        if len(path) == 2 and path[0] == "self" and path[1] in self.methods:
            yield self.methods[path[1]]
        elif isinstance(given, ast.Lambda):
            yield given
        elif len(path) == 1 and isinstance(self.module, ModuleType):
            function = getattr(self.module, path[0])
            yield ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]

    def reached_from(self, start: ast.AST) -> dict[str, ast.AST]:
        """A function, and the methods of the class that it calls."""
        found = {getattr(start, "name", "lambda"): start}
        waiting = [start]
        while waiting:
            for node in ast.walk(waiting.pop()):
                path = _path(node.func) if isinstance(node, ast.Call) else ()
                if len(path) == 2 and path[0] == "self" and path[1] in self.methods.keys() - found.keys():
                    found[path[1]] = self.methods[path[1]]
                    waiting.append(self.methods[path[1]])
        return found


def _path(node: ast.AST) -> tuple[str, ...]:
    """`self.memory.taken[key]` as ("self", "memory", "taken")."""
    match node:
        case ast.Name(name):
            return (name,)
        case ast.Attribute(value, name):
            return (*inner, name) if (inner := _path(value)) else ()
        case ast.Subscript(value) | ast.Starred(value):
            return _path(value)
    return ()


def changes(function: ast.AST) -> Iterator[tuple[str, ...]]:
    """What of `self` a function assigns, deletes, or changes by calling a method of it."""
    for node in ast.walk(function):
        targets: list[ast.expr] = []
        match node:
            case ast.Assign(given) | ast.Delete(given):
                targets = list(given)
            case ast.AugAssign(single) | ast.AnnAssign(single):
                targets = [single]
            case ast.Call(ast.Attribute(receiver, name)) if name in MUTATORS:
                targets = [receiver]
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
            for path in map(_path, parts):
                if len(path) > 1 and path[0] == "self":
                    yield path


# --- the rules


def overrides_reconcile(parts: Parts) -> list[str]:
    return ["overrides reconcile"] if "reconcile" in parts.methods else []


def lacks_a_part(parts: Parts) -> list[str]:
    return [f"has no {name}" for name in ("setup", "view", "plan", "act") if name not in parts.methods]


def keys_change_something(parts: Parts) -> list[str]:
    return [
        f"keys function {name} changes {'.'.join(path)}"
        for keys in parts.keys_functions()
        for name, function in parts.reached_from(keys).items()
        for path in changes(function)
    ]


def view_or_plan_changes_something(parts: Parts) -> list[str]:
    return [
        f"{part}: {name} changes {'.'.join(path)}"
        for part in ("view", "plan", "batches")
        if part in parts.methods
        for name, function in parts.reached_from(parts.methods[part]).items()
        for path in changes(function)
    ]


def keeps_state_outside_memory(parts: Parts) -> list[str]:
    """Attributes that change while the controller runs, and collections that it starts with."""
    found = []
    for name, method in parts.methods.items():
        made_here = name in ("__init__", "setup")
        for path in changes(method):
            if path[1] in (*PORTS, "memory") or (parts.of.__name__, path[1]) in CHANGING:
                continue
            if not made_here or len(path) > 2:
                found.append(f"{name} changes {'.'.join(path)}")
        if made_here:
            found += [f"{name} makes a collection {each}" for each in _collections(parts, method)]
    return found


def _collections(parts: Parts, method: ast.AST) -> Iterator[str]:
    for node in ast.walk(method):
        match node:
            case ast.Assign([target], value) | ast.AnnAssign(target, _, value) if value is not None:
                path, made = _path(target), isinstance(value, ast.Dict | ast.List | ast.Set)
                empty = isinstance(value, ast.Call) and _path(value.func) in (("set",), ("dict",), ("list",))
                constant = isinstance(value, ast.Dict | ast.List | ast.Set) and ast.dump(value).count(
                    "elts=[]"
                )
                if len(path) != 2 or path[0] != "self" or (parts.of.__name__, path[1]) in CHANGING:
                    continue
                if empty or (made and (constant or not _elements(value))):
                    yield path[1]


def _elements(value: ast.AST | None) -> int:
    return len(getattr(value, "keys", None) or getattr(value, "elts", None) or ())


def assigns_settings(parts: Parts) -> list[str]:
    return [
        f"{name} assigns {path[1]} instead of passing it on"
        for name, method in parts.methods.items()
        for path in changes(method)
        if path[1] in SETTINGS
    ]


RULES = (
    overrides_reconcile,
    lacks_a_part,
    keys_change_something,
    view_or_plan_changes_something,
    keeps_state_outside_memory,
    assigns_settings,
)


@pytest.mark.parametrize("of", controllers(), ids=lambda of: f"{of.__module__}:{of.__name__}")
def test_a_controller_has_the_five_parts_and_keeps_to_them(of: AnyController) -> None:
    parts = Parts(of)
    assert [problem for rule in RULES for problem in rule(parts)] == []


def test_all_controllers_are_found() -> None:
    found = {of.name for of in controllers()}
    assert len(found) >= 35
    assert {"persistentvolume-binder-controller", "scheduler", "csi-attacher", "csi-provisioner"} <= found


# --- a class that breaks every rule


class Careless(Controller[str, ConfigMap, str]):
    """Breaks every rule once; never run."""

    def __init__(self, client: Any) -> None:
        self.backoff = Backoff()
        super().__init__(client)
        self.seen: dict[str, int] = {}

    def setup(self) -> None:
        self.configs = self.watch(ConfigMap, self.keys_of_config)

    def keys_of_config(self, old: ConfigMap | None, new: ConfigMap | None) -> Iterator[str]:
        self._remember(new)
        yield ""

    def _remember(self, new: ConfigMap | None) -> None:
        self.seen["last"] = 1

    def view(self, key: str) -> ConfigMap | None:
        self.seen.pop(key, None)
        return None

    async def reconcile(self, key: str) -> None:
        self.last = key


BROKEN = {
    overrides_reconcile: "overrides reconcile",
    lacks_a_part: "has no plan",
    keys_change_something: "keys function _remember changes self.seen",
    view_or_plan_changes_something: "view: view changes self.seen",
    keeps_state_outside_memory: "reconcile changes self.last",
    assigns_settings: "__init__ assigns backoff instead of passing it on",
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_violation_is_found(rule: Any) -> None:
    assert BROKEN[rule] in rule(Parts(Careless))


def test_a_collection_beside_the_memory_is_found() -> None:
    assert "__init__ makes a collection seen" in keeps_state_outside_memory(Parts(Careless))
