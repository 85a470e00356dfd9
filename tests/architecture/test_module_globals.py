"""No module has state: what changes while the program runs belongs to an object that somebody made.

Two clusters in one process must not meet. So no function changes what a module holds, no module holds an
object that can be changed, and only pure functions are cached. The few exceptions are facts of the process
or of the machine; each is listed with its reason.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest

import volplane

SOURCE = Path(volplane.__file__).parent

ALLOWED = {
    "volplane.base.metrics._declared": "a process exposes one set of Prometheus metrics",
    "volplane.base.metrics._sources": "the running roles whose counts computed gauges add up",
    "volplane.base.failpoint._fail_points": "set by the environment of the process, which they kill",
    "volplane.api.kinds._BY_TYPE": "memo of a pure function: a type is listed when it is made",
    "volplane.apiserver.cpu_offload._worker": "one worker thread: Python runs one thread at a time anyway",
    "volplane.apiserver.audit._second": "formats its argument; does not read the clock",
    "volplane.apiserver.auth.rbac.policy._policy": "a data file of this package, read once",
    "volplane.apiserver.defaults._values": "a data file of this package, read once",
    "volplane.apiserver.openapi.descriptions.descriptions": "a data file of this package, read once",
    "volplane.host.devices._attach_lock": "loop devices belong to the machine",
    "volplane.loops.events._serial": "makes names of events different; never read back",
    "volplane.node.containers.seccomp._library": "a shared library is loaded once",
}

MUTATING = frozenset(
    [
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "extendleft",
        "insert",
        "move_to_end",
        "pop",
        "popitem",
        "popleft",
        "put",
        "put_nowait",
        "remove",
        "reverse",
        "rotate",
        "set",
        "setdefault",
        "sort",
        "update",
        "__setitem__",
    ]
)
# Made to be changed, whoever changes them.
STATEFUL = frozenset(
    [
        "count",
        "cycle",
        "deque",
        "defaultdict",
        "Counter",
        "OrderedDict",
        "WeakSet",
        "WeakKeyDictionary",
        "WeakValueDictionary",
        "Lock",
        "RLock",
        "Semaphore",
        "Event",
        "Condition",
        "Queue",
        "SimpleQueue",
        "local",
        "ThreadPoolExecutor",
    ]
)
# Objects that exist to be changed and keep nothing of a cluster: task-local variables, Prometheus metrics.
HARMLESS = frozenset({"ContextVar", "counter", "gauge", "histogram"})
IMPURE_MODULES = frozenset(
    [
        "os",
        "time",
        "clock",
        "random",
        "secrets",
        "asyncio",
        "socket",
        "subprocess",
        "threading",
        "ctypes",
        "shutil",
    ]
)
IMPURE_CALLS = frozenset({"open", "ThreadPoolExecutor", "Path"})

# Classes whose objects are filled when their module is imported, and never changed afterwards.
CONSTANT_CLASSES = {
    "Verbs": "click's group of subcommands",
    "_Duration": "a click parameter type",
    "ApplyType": "a node of a schema, complete when it is made",
    "_AsApiErrors": "a context manager without state",
    "_WorkloadScaling": "functions of one kind of workload",
    "CaseTable": "the test cases of a module",
    "VolumeCapability": "a protobuf message",
    "Counter": "a Prometheus metric",
    "Histogram": "a Prometheus metric",
}

Functions = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.tree = ast.parse(source)
        self.globals = dict(_bindings(self.tree))
        self.imports = dict(_imports(self.tree))

    def functions(self) -> Iterator[Functions]:
        return (node for node in ast.walk(self.tree) if isinstance(node, Functions))


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    for statement in tree.body:
        for node in (
            ast.walk(statement) if isinstance(statement, ast.If | ast.Try | ast.With) else (statement,)
        ):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    for each in ast.walk(target):
                        if isinstance(each, ast.Name):
                            yield each.id, node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id, node.value


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("volplane"):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _called(value: ast.expr | None) -> str:
    """The last name of what a binding calls: `count` for `itertools.count()`."""
    if not isinstance(value, ast.Call):
        return ""
    function = value.func.value if isinstance(value.func, ast.Subscript) else value.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _locals(function: Functions) -> set[str]:
    arguments = function.args
    named = [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ]
    names = {each.arg for each in named if each is not None}
    stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    shared = {name for n in ast.walk(function) if isinstance(n, ast.Global) for name in n.names}
    return (names | stored) - shared


def find_state(modules: Mapping[str, Module]) -> set[tuple[str, str]]:
    """(qualified name, what is wrong) for everything that a module keeps and a function changes."""
    found: set[tuple[str, str]] = set()
    for module in modules.values():
        for name, value in module.globals.items():
            if _called(value) in STATEFUL:
                found.add((f"{module.name}.{name}", f"is a {_called(value)}"))
        for function in module.functions():
            found |= set(_mutations(modules, module, function))
            found |= set(_impure_cache(module, function))
    return found


def _mutations(
    modules: Mapping[str, Module], module: Module, function: Functions
) -> Iterator[tuple[str, str]]:
    hidden = _locals(function)
    where = f"by {module.name}.{function.name}"
    for node in ast.walk(function):
        if isinstance(node, ast.Global):
            yield from ((f"{module.name}.{name}", f"is assigned {where}") for name in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            target = _resolve(modules, module, node.func.value, hidden)
            if target and node.func.attr in MUTATING:
                yield target, f"is changed with .{node.func.attr}() {where}"
        for changed in _targets(node):
            if isinstance(changed, ast.Attribute) and (target := _resolve(modules, module, changed, hidden)):
                yield target, f"is assigned {where}"
            if target := _resolve(modules, module, changed.value, hidden):
                yield target, f"is changed {where}"


def _targets(node: ast.AST) -> Iterator[ast.Subscript | ast.Attribute]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    for target in targets:
        for each in target.elts if isinstance(target, ast.Tuple | ast.List) else (target,):
            if isinstance(each, ast.Subscript | ast.Attribute):
                yield each


def _resolve(modules: Mapping[str, Module], module: Module, node: ast.expr, hidden: set[str]) -> str:
    """The qualified name of a module's variable, if the expression is one; else nothing."""
    owner, name = None, ""
    if isinstance(node, ast.Name) and node.id not in hidden:
        if node.id in module.globals:
            owner, name = module, node.id
        elif node.id in module.imports:
            path, _, name = module.imports[node.id].rpartition(".")
            owner = modules.get(path)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id not in hidden:
        owner, name = modules.get(module.imports.get(node.value.id, "")), node.attr
    if owner is None or name not in owner.globals or _called(owner.globals[name]) in HARMLESS:
        return ""
    return f"{owner.name}.{name}"


def _impure_cache(module: Module, function: Functions) -> Iterator[tuple[str, str]]:
    names = {_called(d) or getattr(d, "attr", getattr(d, "id", "")) for d in function.decorator_list}
    if not names & {"cache", "lru_cache"}:
        return
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name))) if name in IMPURE_MODULES:
                yield f"{module.name}.{function.name}", f"caches what {name} answers"
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                yield f"{module.name}.{function.name}", f"caches the result of {name}()"


def _modules() -> dict[str, Module]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not name.endswith("_pb2"):
            found[name] = Module(name, path.read_text())
    return found


def test_no_function_changes_what_a_module_holds() -> None:
    found = {(name, why) for name, why in find_state(_modules()) if name not in ALLOWED}
    assert not found, "\n".join(f"{name} {why}" for name, why in sorted(found))


def test_every_exception_is_still_needed() -> None:
    found = {name for name, _ in find_state(_modules())} | set(_stateful_instances())
    assert ALLOWED.keys() <= found, sorted(ALLOWED.keys() - found)


def _is_constant(value: object) -> bool:
    kind = type(value)
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.frozen
    return isinstance(value, tuple | Enum | BaseException) or not hasattr(value, "__dict__")


def _stateful_instances() -> Iterator[str]:
    """Module variables that are objects of our own classes, and can be changed."""
    for info in pkgutil.walk_packages(volplane.__path__, "volplane."):
        if info.name.endswith(("__main__", "_pb2")):
            continue
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            kind = type(value)
            ours = kind.__module__.startswith("volplane.") and not inspect.isclass(value)
            if ours and not _is_constant(value) and kind.__name__ not in CONSTANT_CLASSES:
                yield f"{info.name}.{name}"


def test_no_module_holds_an_object_that_can_be_changed() -> None:
    found = sorted(name for name in _stateful_instances() if name not in ALLOWED)
    assert not found, found


VIOLATIONS: dict[str, dict[str, str]] = {
    "a dictionary is filled": {"volplane.a": "_seen = {}\ndef note(key):\n    _seen[key] = 1\n"},
    "a list grows": {"volplane.a": "names: list[str] = []\ndef add(name):\n    names.append(name)\n"},
    "a global statement": {"volplane.a": "count = 0\ndef add():\n    global count\n    count += 1\n"},
    "another module's set": {
        "volplane.a": "running = set()\n",
        "volplane.b": "from volplane import a\ndef start(x):\n    a.running.add(x)\n",
    },
    "another module's name is replaced": {
        "volplane.a": "current = None\n",
        "volplane.b": "from volplane import a\ndef set_it(x):\n    a.current = x\n",
    },
    "an imported dictionary loses an item": {
        "volplane.a": "known = {}\n",
        "volplane.b": "from volplane.a import known\ndef drop(x):\n    del known[x]\n",
    },
    "a counter": {"volplane.a": "from itertools import count\n_serial = count()\n"},
    "a weak set": {"volplane.a": "from weakref import WeakSet\ncaches: WeakSet[int] = WeakSet()\n"},
    "a cached read of a file": {
        "volplane.a": "from functools import cache\n@cache\ndef f():\n    return open('/etc/hosts').read()\n"
    },
    "a cached look at the clock": {
        "volplane.a": "import time\nfrom functools import cache\n@cache\ndef f():\n    return time.time()\n"
    },
}


@pytest.mark.parametrize("sources", VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_violation_is_found(sources: dict[str, str]) -> None:
    assert find_state({name: Module(name, text) for name, text in sources.items()})


HARMLESS_CODE = {
    "a constant table": "_SIZES = {'a': 1}\ndef size(name):\n    return _SIZES[name]\n",
    "a local of the same name": "names = []\ndef f():\n    names = []\n    names.append(1)\n",
    "a context variable": "from contextvars import ContextVar\nv = ContextVar('v')\ndef f():\n    v.set(1)\n",
    "a pure cache": "from functools import cache\n@cache\ndef double(x):\n    return 2 * x\n",
}


@pytest.mark.parametrize("source", HARMLESS_CODE.values(), ids=HARMLESS_CODE)
def test_harmless_code_passes(source: str) -> None:
    assert not find_state({"volplane.a": Module("volplane.a", source)})


def test_an_object_that_can_be_changed_is_found() -> None:
    class Registry:
        def __init__(self) -> None:
            self.items: list[Any] = []

    assert not _is_constant(Registry())
