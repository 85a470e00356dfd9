"""Patches: how a PATCH body changes the wire form of an object.

`apply_patch` is pure: it reads the body, applies it to plain data and leaves typing, defaults and
validation of the result to the caller (`decode.canonical`). What a strict reader would object to in the
body itself (duplicate members, unknown members of a JSON Patch operation) goes to `findings`.
"""

from collections.abc import Callable
from typing import Any

from msgspec import json

from volplane.api.errors import BadRequest, Invalid, TooLarge, UnsupportedMediaType
from volplane.api.kinds import Kind
from volplane.apiserver.decode.parse import Malformed, parse_json
from volplane.apiserver.patch import jsonpatch, merge, strategic

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

Map = dict[str, Any]


class Own(bytes):
    """A body that was written here, from a mapping: it is well-formed, and has no member twice."""


def accepted(kind: Kind) -> tuple[str, ...]:
    """The patch types of a kind; custom resources have no schema for strategic merge patch."""
    return (JSON, MERGE, STRATEGIC, APPLY) if kind.type is not None else (JSON, MERGE, APPLY)


def media_type(kind: Kind, content_type: str) -> str:
    """The patch type a Content-Type names. Raises UnsupportedMediaType."""
    name = content_type.partition(";")[0].strip().lower()
    if name not in accepted(kind):
        listed = ", ".join(accepted(kind))
        raise UnsupportedMediaType(
            f"the body of the request was in an unknown format - accepted media types include: {listed}"
        )
    return name


def apply_patch(
    kind: Kind, content_type: str, current: Map, body: bytes, *, findings: list[str] | None = None
) -> Map:
    """The object (wire form) after the patch. `current` is left as it is."""
    name = media_type(kind, content_type)
    if name == APPLY:
        # Apply merges by owners, which a document without its stored object does not have.
        listed = ", ".join(a for a in accepted(kind) if a != APPLY)
        raise UnsupportedMediaType(f"{APPLY} is not accepted here, only {listed}")
    found = findings if findings is not None else []
    try:
        return _PATCHES[name](kind, current, body, found)
    except RecursionError as error:
        raise BadRequest("exceeded max depth") from error


def _json(kind: Kind, current: Map, body: bytes, findings: list[str]) -> Map:
    operations, duplicates = _read(body)
    if operations is None:
        operations = []
    if not isinstance(operations, list) or not all(isinstance(o, dict | None) for o in operations):
        word = "object" if isinstance(operations, dict) else "array"
        told = f"json: cannot unmarshal {word} into Go value of type []handlers.jsonPatchOp"
        raise BadRequest(f"error decoding patch: {told}")
    if len(operations) > jsonpatch.MAX_OPERATIONS:
        raise TooLarge(
            "Request entity too large: The allowed maximum operations in a JSON patch is "
            f"{jsonpatch.MAX_OPERATIONS}, got {len(operations)}"
        )
    findings += [f'json patch duplicate field "{path}"' for path in duplicates]
    findings += _unknown_members(operations)
    try:
        # Operations work in place, and on lists: what comes from an object has tuples.
        result = jsonpatch.apply(json.decode(json.encode(current)), operations)
    except jsonpatch.PatchFailed as error:
        raise _unprocessable() from error
    if not isinstance(result, dict):
        raise _unprocessable()
    return result


def _merge(kind: Kind, current: Map, body: bytes, findings: list[str]) -> Map:
    told = "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"
    return merge.merge(current, _document(body, findings, told))


def _strategic(kind: Kind, current: Map, body: bytes, findings: list[str]) -> Map:
    assert kind.type is not None  # media_type() refused custom resources
    try:
        return strategic.apply(kind.type, current, _document(body, findings, "invalid JSON document"))
    except strategic.BadPatch as error:
        # Upstream answers some of these with 500; nothing a client sends shall be our internal error.
        raise (_unprocessable() if error.unprocessable else BadRequest(str(error))) from error


_PATCHES: dict[str, Callable[[Kind, Map, bytes, list[str]], Map]] = {
    JSON: _json,
    MERGE: _merge,
    STRATEGIC: _strategic,
}


def _read(body: bytes) -> tuple[Any, list[str]]:
    if isinstance(body, Own):
        return json.decode(body), []
    try:
        return parse_json(body)
    except Malformed as error:
        raise BadRequest(f"error decoding patch: {error}") from error


def _document(body: bytes, findings: list[str], otherwise: str) -> Map:
    document, duplicates = _read(body)
    if not isinstance(document, dict):
        raise BadRequest(otherwise)
    findings += [f'duplicate field "{path}"' for path in duplicates]
    return document


_MEMBERS = frozenset({"op", "path", "from", "value"})


def _unknown_members(operations: list[Any]) -> list[str]:
    return [
        f'json patch unknown field "[{at}].{name}"'
        for at, operation in enumerate(operations)
        for name in operation or ()
        if name not in _MEMBERS
    ]


class _Unprocessable(Invalid):
    """Not about a field: its details are there, and empty."""

    def status(self) -> dict[str, Any]:
        return {**super().status(), "details": {}}


def _unprocessable() -> Invalid:
    return _Unprocessable("the server rejected our request due to an error in our request")
