"""Patches: how a PATCH body changes the wire form of an object.

All of it is pure: the body is read once, applied to plain data as often as it takes, and typing, defaults and
validation of the result are left to the caller (`decode.canonical`). What a strict reader would object to in
the body itself (duplicate members, unknown members of a JSON Patch operation) goes to `findings`.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct, json, to_builtins

from volplane.api.errors import BadRequest, Invalid, TooLarge, UnsupportedMediaType
from volplane.api.kinds import Kind
from volplane.apiserver.decode.limits import MalformedBody
from volplane.apiserver.decode.parse import parse_json
from volplane.apiserver.patch import jsonpatch, merge, strategic

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

Map = dict[str, Any]


class TrustedBody(bytes):
    """A body that was written here, from a mapping: it is well-formed, and has no member twice."""


def accepted_media_types(kind: Kind) -> tuple[str, ...]:
    """The patch types of a kind; custom resources have no schema for strategic merge patch."""
    return (JSON, MERGE, STRATEGIC, APPLY) if kind.type is not None else (JSON, MERGE, APPLY)


def media_type(kind: Kind, content_type: str) -> str:
    """The patch type a Content-Type names. Raises UnsupportedMediaType."""
    name = content_type.partition(";")[0].strip().lower()
    if name not in accepted_media_types(kind):
        listed = ", ".join(accepted_media_types(kind))
        raise UnsupportedMediaType(
            f"the body of the request was in an unknown format - accepted media types include: {listed}"
        )
    return name


class ParsedPatch(Struct):
    """A patch that was read: applied as often as another writer was faster."""

    kind: Kind
    style: str
    document: Any
    findings: list[str]  # what a strict reader objects to
    members: Map | None = None  # what it says about members of the object; None: it may change any of them

    def apply_to(self, current: Map) -> Map:
        """The object (wire form) after the patch. `current` is left as it is, and so is the patch: what
        comes out holds pieces of a copy, and is changed by whoever gets it.
        """
        try:
            return _PATCHES[self.style](self.kind, current, to_builtins(self.document))
        except RecursionError as error:
            raise BadRequest("exceeded max depth") from error


def read_patch(kind: Kind, content_type: str, body: bytes) -> ParsedPatch:
    style = media_type(kind, content_type)
    if style == APPLY:
        # Apply merges by owners, which a document without its stored object does not have.
        listed = ", ".join(a for a in accepted_media_types(kind) if a != APPLY)
        raise UnsupportedMediaType(f"{APPLY} is not accepted here, only {listed}")
    try:
        document, duplicates = _read(body)
    except RecursionError as error:
        raise BadRequest("exceeded max depth") from error
    if style == JSON:
        return ParsedPatch(kind, style, *_operations(document, duplicates))
    if not isinstance(document, dict):
        raise BadRequest(_NO_DOCUMENT[style])
    members = None if "$" in "".join(document) else document
    return ParsedPatch(kind, style, document, [f'duplicate field "{path}"' for path in duplicates], members)


_NO_DOCUMENT = {
    MERGE: "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}",
    STRATEGIC: "invalid JSON document",
}


def apply_patch(
    kind: Kind, content_type: str, current: Map, body: bytes, *, findings: list[str] | None = None
) -> Map:
    """Both at once."""
    reading = read_patch(kind, content_type, body)
    if findings is not None:
        findings += reading.findings
    return reading.apply_to(current)


def _operations(operations: Any, duplicates: list[str]) -> tuple[list[Any], list[str]]:
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
    twice = [f'json patch duplicate field "{path}"' for path in duplicates]
    return operations, [*twice, *_unknown_members(operations)]


def _json(kind: Kind, current: Map, operations: Any) -> Map:
    try:
        # Operations work in place, and on lists: what comes from an object has tuples.
        result = jsonpatch.apply(json.decode(json.encode(current)), operations)
    except jsonpatch.CopyLimitExceeded as error:
        raise TooLarge(f"Request entity too large: {error}") from error
    except jsonpatch.JSONPatchFailed as error:
        raise _unprocessable() from error
    if not isinstance(result, dict):
        raise _unprocessable()
    return result


def _merge(kind: Kind, current: Map, document: Any) -> Map:
    return merge.merge(current, document)


def _strategic(kind: Kind, current: Map, document: Any) -> Map:
    assert kind.type is not None  # media_type() refused custom resources
    try:
        return strategic.apply(kind.type, current, document)
    except strategic.InvalidStrategicPatch as error:
        # Upstream answers some of these with 500; nothing a client sends shall be our internal error.
        raise (_unprocessable() if error.unprocessable else BadRequest(str(error))) from error


_PATCHES: dict[str, Callable[[Kind, Map, Any], Map]] = {JSON: _json, MERGE: _merge, STRATEGIC: _strategic}


def _read(body: bytes) -> tuple[Any, list[str]]:
    if isinstance(body, TrustedBody):
        return json.decode(body), []
    try:
        return parse_json(body)
    except MalformedBody as error:
        raise BadRequest(f"error decoding patch: {error}") from error


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
