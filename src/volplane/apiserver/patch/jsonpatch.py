"""JSON Patch as Kubernetes implements it, with deviations from RFC 6902.

Controllers rely on the deviations: `replace` sets a missing member, and a missing member counts as null for
`test`. Array indices may be negative: `add` counts from one past the end, so that `-1` appends; all other
operations count from the last element.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import json

from volplane.apiserver import cpu_offload

MAX_OPERATIONS = 10_000
MAX_COPIED = 3 * 1024 * 1024  # bytes of JSON that all `copy` operations of a patch may add

_POSITION = re.compile(r"[+-]?[0-9]{1,18}")
_ABSENT = object()


class JSONPatchFailed(Exception):
    """An operation cannot be applied, or a `test` failed."""


class CopyLimitExceeded(Exception):
    """`copy` operations exceed the size limit: copies of copies grow exponentially."""

    def __init__(self, copied: int) -> None:
        super().__init__(
            f"Unable to complete the copy, the accumulated size increase of copy is {copied}, "
            f"exceeding the limit {MAX_COPIED}"
        )


def apply(document: dict[str, Any], operations: list[Any]) -> Any:
    """Apply all operations; modifies the document.

    Raise JSONPatchFailed or CopyLimitExceeded.
    """
    root: Any = document
    copied = 0
    for operation in operations:
        # A null in the list of operations is an operation without members.
        given = operation or {}
        name = _text(given, "op")
        if name == "copy":
            copied += _copy(root, given, MAX_COPIED - copied)
            continue
        act = _OPERATIONS.get(name)
        if act is None:
            raise JSONPatchFailed(f"Unexpected kind: {name or 'unknown'}")
        root = act(root, given)
    return root


def equal_as_json(left: Any, right: Any) -> bool:
    """Compare as JSON text: 1 equals neither 1.0 nor true; the order of members does not matter."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal_as_json(v, right[k]) for k, v in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(map(equal_as_json, left, right))
    return bool(left == right)


def _add(root: Any, operation: Mapping[str, Any]) -> Any:
    path = _pointer(operation, "path")
    _insert(*_parent(root, path, "add operation"), operation.get("value"), path)
    return root


def _remove(root: Any, operation: Mapping[str, Any]) -> Any:
    path = _pointer(operation, "path")
    _pop(*_parent(root, path, "remove operation"), path)
    return root


def _replace(root: Any, operation: Mapping[str, Any]) -> Any:
    path = _pointer(operation, "path")
    value = operation.get("value")
    if path == "":
        if not isinstance(value, (dict, list)):
            raise JSONPatchFailed("replace operation value must be object or array")
        return value
    parent, key = _parent(root, path, "replace operation")
    if isinstance(parent, list):
        parent[_position(key, len(parent))] = value
    else:
        parent[key] = value
    return root


def _move(root: Any, operation: Mapping[str, Any]) -> Any:
    source = _pointer(operation, "from")
    value = _pop(*_parent(root, source, "move operation"), source)
    path = _pointer(operation, "path")
    _insert(*_parent(root, path, "move operation"), value, path)
    return root


def _copy(root: Any, operation: Mapping[str, Any], allowed: int) -> int:
    """Copy a value and return its size as JSON."""
    value = _get(*_parent(root, _pointer(operation, "from"), "copy operation"))
    path = _pointer(operation, "path")
    parent, key = _parent(root, path, "copy operation")
    text = json.encode(None if value is _ABSENT else value)
    if len(text) > allowed:
        raise CopyLimitExceeded(MAX_COPIED - allowed + len(text))
    cpu_offload.spend(len(text) // 50)
    _insert(parent, key, json.decode(text), path)
    return len(text)


def _test(root: Any, operation: Mapping[str, Any]) -> Any:
    path = _pointer(operation, "path")
    held = root if path == "" else _get(*_parent(root, path, "test operation"))
    if not equal_as_json(None if held is _ABSENT else held, operation.get("value")):
        raise JSONPatchFailed(f"testing value {path} failed: test failed")
    return root


_OPERATIONS: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "add": _add, "remove": _remove, "replace": _replace, "move": _move, "test": _test,
}  # fmt: skip


def _text(operation: Mapping[str, Any], name: str) -> str:
    value = operation.get(name)
    return value if isinstance(value, str) else ""


def _pointer(operation: Mapping[str, Any], name: str) -> str:
    value = operation.get(name)
    if not isinstance(value, str):
        raise JSONPatchFailed(f"operation missing {name} field: missing value")
    return value


def _parent(root: Any, path: str, what: str) -> tuple[dict[str, Any] | list[Any], str]:
    """Return the container of the last step of a path, and that step."""
    _, *steps = path.split("/")
    if not steps:
        raise JSONPatchFailed(f'{what} does not apply: doc is missing path: "{path}": missing value')
    here = root
    for step in steps[:-1]:
        try:
            here = _get(here, _unescape(step))
        except JSONPatchFailed:
            here = None
        if not isinstance(here, (dict, list)):
            raise JSONPatchFailed(f'{what} does not apply: doc is missing path: "{path}": missing value')
    return here, _unescape(steps[-1])


def _unescape(step: str) -> str:
    # In this order: "~01" is the text "~1".
    return step.replace("~1", "/").replace("~0", "~")


def _position(key: str, length: int) -> int:
    if not _POSITION.fullmatch(key):
        raise JSONPatchFailed(f"value was not a proper array index: '{key}'")
    position = int(key)
    if not -length <= position < length:
        raise JSONPatchFailed(f"Unable to access invalid index: {position}: invalid index referenced")
    return position % length


def _get(parent: dict[str, Any] | list[Any], key: str) -> Any:
    if isinstance(parent, list):
        return parent[_position(key, len(parent))]
    return parent.get(key, _ABSENT)


def _pop(parent: dict[str, Any] | list[Any], key: str, path: str) -> Any:
    if isinstance(parent, list):
        return parent.pop(_position(key, len(parent)))
    if key not in parent:
        raise JSONPatchFailed(f"error in remove for path: '{path}': Unable to remove nonexistent key: {key}")
    return parent.pop(key)


def _insert(parent: dict[str, Any] | list[Any], key: str, value: Any, path: str) -> None:
    if isinstance(parent, dict):
        parent[key] = value
    elif key == "-":
        parent.append(value)
    else:
        parent.insert(_position(key, len(parent) + 1), value)
