"""Apply PATCH bodies to the wire form of an object. Pure.

The body is parsed once and applied to plain data, again after each write conflict. The caller converts,
defaults and validates the result (`decode.convert_patched`). `findings` collects what strict field validation
reports about the body itself: duplicate members, unknown members of a JSON Patch operation.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct, json, to_builtins

from volplane.api import merge_patch
from volplane.api.errors import BadRequest, Invalid, TooLarge, UnsupportedMediaType
from volplane.api.kinds import Kind
from volplane.apiserver.decode.limits import MalformedBody
from volplane.apiserver.decode.parse import parse_json
from volplane.apiserver.patch import jsonpatch, strategic

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

Map = dict[str, Any]


class TrustedBody(bytes):
    """A body encoded by this process: well-formed and without duplicate members."""


def accepted_media_types(kind: Kind) -> tuple[str, ...]:
    """Return the patch types of a kind; custom resources do not support strategic merge patch."""
    return (JSON, MERGE, STRATEGIC, APPLY) if kind.type is not None else (JSON, MERGE, APPLY)


def media_type(kind: Kind, content_type: str) -> str:
    """Return the patch type of a Content-Type. Raise UnsupportedMediaType."""
    name = content_type.partition(";")[0].strip().lower()
    if name not in accepted_media_types(kind):
        listed = ", ".join(accepted_media_types(kind))
        raise UnsupportedMediaType(
            f"the body of the request was in an unknown format - accepted media types include: {listed}"
        )
    return name


class ParsedPatch(Struct):
    """A parsed patch; applied again whenever another writer was faster."""

    kind: Kind
    style: str
    document: Any
    findings: list[str]  # what strict field validation reports
    members: Map | None = None  # top-level members that it changes; None: it may change any of them

    def apply_to(self, current: Map) -> Map:
        """Return the object (wire form) after the patch. Neither `current` nor the patch is modified; the
        caller may modify the result.
        """
        try:
            return _PATCHES[self.style](self.kind, current, to_builtins(self.document))
        except RecursionError as error:
            raise BadRequest("exceeded max depth") from error


def read_patch(kind: Kind, content_type: str, body: bytes) -> ParsedPatch:
    style = media_type(kind, content_type)
    if style == APPLY:
        # Apply needs the owners of the stored object: see `verbs.apply`.
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
    """Parse and apply a patch."""
    reading = read_patch(kind, content_type, body)
    if findings is not None:
        findings += reading.findings
    return reading.apply_to(current)


def _operations(operations: Any, duplicates: list[str]) -> tuple[list[Any], list[str]]:
    if operations is None:
        operations = []
    if not isinstance(operations, list) or not all(isinstance(o, dict | None) for o in operations):
        word = "object" if isinstance(operations, dict) else "array"
        message = f"json: cannot unmarshal {word} into Go value of type []handlers.jsonPatchOp"
        raise BadRequest(f"error decoding patch: {message}")
    if len(operations) > jsonpatch.MAX_OPERATIONS:
        raise TooLarge(
            "Request entity too large: The allowed maximum operations in a JSON patch is "
            f"{jsonpatch.MAX_OPERATIONS}, got {len(operations)}"
        )
    twice = [f'json patch duplicate field "{path}"' for path in duplicates]
    return operations, sorted([*twice, *_unknown_members(operations)], key=_operation_of)


def _json(kind: Kind, current: Map, operations: Any) -> Map:
    try:
        # Operations modify lists in place; data from a Struct has tuples.
        result = jsonpatch.apply(json.decode(json.encode(current)), operations)
    except jsonpatch.CopyLimitExceeded as error:
        raise TooLarge(f"Request entity too large: {error}") from error
    except jsonpatch.JSONPatchFailed as error:
        raise _unprocessable() from error
    if not isinstance(result, dict):
        raise _unprocessable()
    return result


def _merge(kind: Kind, current: Map, document: Any) -> Map:
    return merge_patch.merge(current, document)


def _strategic(kind: Kind, current: Map, document: Any) -> Map:
    assert kind.type is not None  # media_type() refused custom resources
    try:
        return strategic.apply(kind.type, current, document)
    except strategic.InvalidStrategicPatch as error:
        # Upstream answers some of these with 500, but bad requests should get 4xx.
        raise (_unprocessable() if error.unprocessable else BadRequest(str(error))) from error


_PATCHES: dict[str, Callable[[Kind, Map, Any], Map]] = {JSON: _json, MERGE: _merge, STRATEGIC: _strategic}


def _read(body: bytes) -> tuple[Any, list[str]]:
    if isinstance(body, TrustedBody):
        return json.decode(body), []
    try:
        return parse_json(body)
    except MalformedBody as error:
        raise BadRequest(f"error decoding patch: {error}") from error


def _operation_of(finding: str) -> int:
    """The position of the operation that a finding is about."""
    return int(finding.partition("[")[2].partition("]")[0])


_MEMBERS = frozenset({"op", "path", "from", "value"})


def _unknown_members(operations: list[Any]) -> list[str]:
    return [
        f'json patch unknown field "[{at}].{name}"'
        for at, operation in enumerate(operations)
        for name in operation or ()
        if name not in _MEMBERS
    ]


class _Unprocessable(Invalid):
    """An Invalid error that is not about a field: its details are present but empty."""

    def status(self) -> dict[str, Any]:
        return {**super().status(), "details": {}}


def _unprocessable() -> Invalid:
    return _Unprocessable("the server rejected our request due to an error in our request")
