"""No code looks into the sentence of a wait: plans, reports and `explain` meet on reasons and data.

The check reads the syntax trees of all modules that handle waits. `wait.text`, `report.why` and what `render`
returns are sentences, and so are variables made from them. Comparing, searching or cutting one is a violation
(docs/decisions/0033).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import volplane

SOURCES = Path(volplane.__file__).parent
HANDLES_WAITS = ("volplane.rules.waits", "volplane.loops.wait_reports", "volplane.explain")
SENTENCE_ATTRIBUTES = ("text", "why")
SENTENCE_FUNCTIONS = ("render",)
COMPARISONS = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
STRING_METHODS = frozenset(
    (
        *("startswith", "endswith", "find", "rfind", "index", "count"),
        *("partition", "rpartition", "split", "rsplit", "removeprefix", "removesuffix", "replace"),
    )
)
REGULAR_EXPRESSIONS = ("match", "search", "fullmatch", "findall", "finditer", "split", "sub")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def violations(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    if not any(_handles_waits(node) for node in ast.walk(tree)):
        return
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    for scope in (tree, *functions):
        names = _sentence_names(scope) if isinstance(scope, Function) else frozenset()
        for node in _own_nodes(scope):
            if problem := _problem(node, names):
                yield f"line {node.lineno}: {problem}: {ast.unparse(node)}"


def _handles_waits(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module=str(module)):
            return module.startswith(HANDLES_WAITS)
        case ast.Import(names):
            return any(name.name.startswith(HANDLES_WAITS) for name in names)
    return False


def _own_nodes(scope: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """The nodes of a function without those of functions inside it."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, Function):
            continue
        if isinstance(child, ast.expr | ast.stmt):
            yield child
        yield from _own_nodes(child)


def _sentence_names(function: Function) -> frozenset[str]:
    """Variables made from a sentence, directly or through others."""
    names: set[str] = set()
    while True:
        found = set(names)
        for node in _own_nodes(function):
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.NamedExpr(target=ast.Name(id=name), value=value)
                ):
                    if _contains_sentence(value, frozenset(names)):
                        found.add(name)
        if found == names:
            return frozenset(names)
        names = found


def _contains_sentence(value: ast.expr, names: frozenset[str]) -> bool:
    """Not what a sentence is only passed to: a step that shows one is not a sentence itself."""
    if _is_sentence(value, names):
        return True
    match value:
        case ast.Call(func=ast.Name(id="next"), args=[first, *_]):
            return _contains_sentence(first, names)
        case ast.GeneratorExp(elt=element) | ast.ListComp(elt=element):
            return _is_sentence(element, names)
        case ast.IfExp(body=body, orelse=other):
            return _contains_sentence(body, names) or _contains_sentence(other, names)
        case ast.BoolOp(values=values):
            return any(_contains_sentence(each, names) for each in values)
        case ast.Subscript(value=inner):
            return _contains_sentence(inner, names)
    return False


def _is_sentence(node: ast.AST, names: frozenset[str]) -> bool:
    match node:
        case ast.Attribute(attr=attribute):
            return attribute in SENTENCE_ATTRIBUTES
        case ast.Name(id=name):
            return name in names
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in SENTENCE_FUNCTIONS
    return False


def _problem(node: ast.AST, names: frozenset[str]) -> str:
    match node:
        case ast.Compare(left, operators, others):
            compares = any(isinstance(operator, COMPARISONS) for operator in operators)
            return "compares a sentence" if compares and _any_sentence((left, *others), names) else ""
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in STRING_METHODS:
            return "searches a sentence" if _is_sentence(value, names) else ""
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name), args=args):
            return "searches a sentence" if name in REGULAR_EXPRESSIONS and _any_sentence(args, names) else ""
        case ast.Match(subject=subject):
            return "matches a sentence" if _is_sentence(subject, names) else ""
        case ast.Subscript(value=value):
            return "cuts a sentence" if _is_sentence(value, names) else ""
    return ""


def _any_sentence(nodes: object, names: frozenset[str]) -> bool:
    assert isinstance(nodes, tuple | list)
    return any(
        _is_sentence(each, names)
        or (isinstance(each, ast.Tuple | ast.List | ast.Set) and _any_sentence(each.elts, names))
        for each in nodes
    )


def _modules() -> list[Path]:
    return sorted(SOURCES.rglob("*.py"))


def test_no_code_compares_sentences() -> None:
    found = [
        f"{path.relative_to(SOURCES)} {problem}"
        for path in _modules()
        for problem in violations(path.read_text())
    ]
    assert found == []


def test_the_modules_that_handle_waits_are_found() -> None:
    handling = [path for path in _modules() if "rules.waits import" in path.read_text()]
    assert len(handling) > 40


# --- each way to look into a sentence is found

IMPORT = "from volplane.rules.waits import Wait\n"
VIOLATIONS = {
    "equality": "def f(step):\n    return step.text == 'a still has it'",
    "containment": "def f(steps):\n    return [s for s in steps if 'pods stay' in s.text]",
    "one of several": "def f(report, step):\n    return report.why in (step.why, *step.details)",
    "a variable": "def f(steps):\n    why = next((s.text for s in steps), '')\n    return why == WAITING",
    "a variable of a variable": "def f(wait):\n    a = wait.text\n    b = a or ''\n    return b != ''",
    "the rendered sentence": "def f(reason, data):\n    return render(reason, data) == 'x'",
    "its beginning": "def f(wait):\n    return wait.text.startswith('waiting')",
    "its parts": "def f(step):\n    return step.why.partition(': ')[0]",
    "a pattern": "def f(wait):\n    return re.search('not free', wait.text)",
    "a match": "def f(wait):\n    match wait.text:\n        case 'x':\n            return 1",
    "a slice": "def f(report):\n    return report.why[:10]",
}
ALLOWED = {
    "the reason": "def f(wait):\n    return wait.reason == WaitReason.RETRY",
    "the data": "def f(wait):\n    return wait.data.node == 'a' and wait.identity in known",
    "showing it": "def f(wait):\n    return f'{wait.text}; {wait.data.node}'",
    "asking whether there is one": "def f(report):\n    return report.why or 'nothing reported'",
    "a step that shows it": "def f(wait):\n    step = waiting_step(wait.text)\n    return step == other",
}


@pytest.mark.parametrize("source", VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_violation_is_found(source: str) -> None:
    assert len(list(violations(IMPORT + source))) == 1


@pytest.mark.parametrize("source", ALLOWED.values(), ids=ALLOWED)
def test_reasons_data_and_shown_sentences_are_allowed(source: str) -> None:
    assert list(violations(IMPORT + source)) == []
