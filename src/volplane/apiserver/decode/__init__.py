"""Request bodies as typed objects, with field validation (unknown and duplicate fields).

`decode_body` reads the body of a request, `convert_patched` converts the result of a patch. Both return the
object and a list of findings (`unknown field "spec.foo"`): warnings, or with `fieldValidation=Strict` an
error. Nothing is defaulted or validated here.
"""

from typing import Any

import msgspec

from volplane.api import kinds
from volplane.api.errors import BadRequest, Cause, Invalid, UnsupportedMediaType
from volplane.api.kinds import Kind
from volplane.api.object import Object
from volplane.apiserver import cpu_offload
from volplane.apiserver.decode import protobuf
from volplane.apiserver.decode.canonicalize import TypeMismatch, walker
from volplane.apiserver.decode.go_errors import type_error
from volplane.apiserver.decode.limits import MalformedBody
from volplane.apiserver.decode.parse import order_by_document, order_by_key, parse_json
from volplane.apiserver.decode.yaml_text import parse_yaml
from volplane.web import Request

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = protobuf.MEDIA_TYPE
TEXTS = (JSON, YAML)
ACCEPTED = (*TEXTS, PROTOBUF)
STRICT, WARN, IGNORE = "Strict", "Warn", "Ignore"

NON_JSON_COST = 8  # parsing YAML and protobuf takes so much longer than JSON of the same length

_SCHEME = "pkg/api/legacyscheme/scheme.go:30"
# Upstream still accepts it: the fields are the same, and kubectl up to 1.21 sends it to drain a node.
_OLDER_EVICTION = ("policy/v1beta1", "Eviction")
_MAX_FINDINGS = 100
_YAML_ERRORS = "yaml: unmarshal errors:"
_SUMMARY = 30


class Undecodable(Exception):
    """Plain data that does not fit its type; the message is the API's."""


def decode_body(kind: Kind, body: bytes, content_type: str, validation: str = WARN) -> tuple[Any, list[str]]:
    """The object in a request body (a dict for custom resources), and warnings. Raises BadRequest."""
    if protobuf.is_protobuf(content_type) and kind.type is not None:
        return _decode_protobuf(kind, kind.type, body), []  # unknown fields have no names in protobuf
    document, findings = _document(kind, body, content_type)
    _check_type(kind, document)
    try:
        obj, unknown = convert_object(kind, document)
    except Undecodable as error:
        raise _cannot_handle(kind, str(error)) from error
    findings = _ordered_findings(kind, body, content_type, findings, unknown)
    if findings and validation == STRICT:
        raise _cannot_handle(kind, f"strict decoding error: {', '.join(findings[:_MAX_FINDINGS])}")
    return obj, [w for finding in findings for w in _split_finding(finding)] if validation == WARN else []


def _split_finding(finding: str) -> list[str]:
    """The duplicates of a YAML document are one error, but each is a warning."""
    if not finding.startswith(_YAML_ERRORS):
        return [finding]
    return [line.strip() for line in finding.removeprefix(_YAML_ERRORS).strip().split("\n")]


def _ordered_findings(
    kind: Kind, body: bytes, content_type: str, findings: list[str], unknown: list[str]
) -> list[str]:
    """Duplicates (`findings`) and unknown fields in upstream's order."""
    is_json = _media(content_type) in ("", JSON)
    if kind.type is not None and findings and unknown and is_json:
        ordered = order_by_document(body, [_duplicate_path(text) for text in findings], unknown)
        return [
            _unknown_field(path) if is_unknown else _duplicate_field(path) for path, is_unknown in ordered
        ]
    if kind.type is not None and not is_json:
        unknown = order_by_key(unknown)
    return [*findings, *map(_unknown_field, unknown)]


def _unknown_field(path: str) -> str:
    return f'unknown field "{path}"'


def _duplicate_field(path: str) -> str:
    return f'duplicate field "{path}"'


def _duplicate_path(finding: str) -> str:
    return finding.removeprefix('duplicate field "').removesuffix('"')


async def decode_request(kind: Kind, request: Request, validation: str = WARN) -> tuple[Any, list[str]]:
    """Decode the body of a request, in a thread if it is large."""
    body, content_type = request.body, request.headers.get("content-type")
    size = len(body) if _media(content_type) in ("", JSON) else len(body) * NON_JSON_COST
    return await cpu_offload.run(size, [], decode_body, kind, body, content_type, validation)


def _decode_protobuf(kind: Kind, of: type[Object], body: bytes) -> Any:
    """The object in a protobuf body."""
    try:
        envelope = protobuf.open_body(body)
    except protobuf.InvalidProtobuf as error:
        raise _unrecognized_object(kind, str(error), body) from error
    _check_type(kind, {"apiVersion": envelope.api_version, "kind": envelope.kind})
    try:
        return convert_struct(of, protobuf.read(of, envelope.data))[0]
    except (protobuf.InvalidProtobuf, Undecodable) as error:
        raise _cannot_handle(kind, str(error)) from error


def convert_patched(
    kind: Kind, data: dict[str, Any], validation: str = WARN, *, findings: list[str] | None = None
) -> tuple[Any, list[str]]:
    """Convert the result of a patch; `findings` are those of the patch itself. Raises Invalid."""
    shown = msgspec.json.encode(data).decode() if validation == STRICT else ""
    try:
        obj, unknown = convert_object(kind, data)
    except Undecodable as error:
        raise _invalid_patch(shown or msgspec.json.encode(data).decode(), str(error)) from error
    if len(unknown) > 1 and kind.type is not None:
        unknown = order_by_key(unknown)
    found = [*(findings or ()), *map(_unknown_field, unknown)]
    if found and validation == STRICT:
        raise _invalid_patch(shown, f"strict decoding error: {', '.join(found[:_MAX_FINDINGS])}")
    return obj, found if validation == WARN else []


def convert_object(kind: Kind, data: dict[str, Any]) -> tuple[Any, list[str]]:
    """Convert plain data, which is modified, to an object of a kind. Also returns the unknown fields."""
    metadata = data.get("metadata")
    if type(metadata) is dict and metadata.get("managedFields") == []:
        metadata["managedFields"] = [{}]  # an empty list clears all owners, but would be omitted as empty
    if kind.type is None:
        return data, list(kind.prune(data)) if kind.prune is not None else []
    return convert_struct(kind.type, data)


def convert_struct(of: type[Object], data: dict[str, Any]) -> tuple[Any, list[str]]:
    """Convert plain data to any type, such as DeleteOptions. Also returns the unknown fields."""
    try:
        found = walker(of)(data)
        obj = msgspec.convert(data, of)
    except TypeMismatch as error:
        raise Undecodable(str(error)) from error
    except msgspec.ValidationError as error:
        raise Undecodable(type_error(of, error)) from error
    except RecursionError as error:
        raise Undecodable("exceeded max depth") from error
    return obj, found or []


def decode_options(of: type[Object], body: bytes, content_type: str) -> Any:
    """Decode options such as DeleteOptions; their apiVersion is ignored. Raises BadRequest."""
    try:
        if protobuf.is_protobuf(content_type):
            envelope = protobuf.open_body(body)
            _check_options(of, envelope.kind)
            return convert_struct(of, protobuf.read(of, envelope.data))[0]
        try:
            data, _ = parse_body(body, content_type)
        except MalformedBody as error:
            raise BadRequest(f"couldn't get version/kind; json parse error: {error}") from error
        if not isinstance(data, dict):
            raise BadRequest(f"the body of the request must be {of.__name__}")
        data.pop("apiVersion", None)
        _check_options(of, data.pop("kind", None))
        return convert_struct(of, data)[0]
    except (MalformedBody, protobuf.InvalidProtobuf, Undecodable) as error:
        raise BadRequest(str(error)) from error


def _check_options(of: type[Object], kind: Any) -> None:
    if kind and kind != of.__name__:
        raise BadRequest(f'decoded object cannot be converted to {of.__name__}: kind "{kind}"')


def parse_body(
    body: bytes, content_type: str, *, accepted: tuple[str, ...] = ACCEPTED
) -> tuple[Any, list[str]]:
    """Parse JSON or YAML. Also returns its duplicate fields. Raises MalformedBody or UnsupportedMediaType."""
    name = _media(content_type)
    if name in ("", JSON):
        document, duplicates = parse_json(body)
        return document, [_duplicate_field(path) for path in duplicates]
    if name == YAML:
        document, duplicates = parse_yaml(body)
        return document, [_YAML_ERRORS + "".join(f"\n  {d}" for d in duplicates)] if duplicates else []
    raise UnsupportedMediaType(
        "the body of the request was in an unknown format - "
        f"accepted media types include: {', '.join(accepted)}"
    )


def _media(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _document(kind: Kind, body: bytes, content_type: str) -> tuple[dict[str, Any], list[str]]:
    # Custom resources have no protobuf form.
    accepted = TEXTS if kind.type is None else ACCEPTED
    try:
        document, findings = parse_body(body, content_type, accepted=accepted)
        if not isinstance(document, dict):
            raise MalformedBody(
                f"json: cannot unmarshal {_word_for(document)} into Go value of type v1.TypeMeta"
            )
    except MalformedBody as error:
        raise _unrecognized_object(
            kind, f"couldn't get version/kind; json parse error: {error}", body
        ) from error
    return document, findings


def _unrecognized_object(kind: Kind, why: str, body: bytes) -> BadRequest:
    return BadRequest(
        f"the object provided is unrecognized (must be of type {kind.kind}): {why} ({_summary(body)})"
    )


def _word_for(value: Any) -> str:
    return {list: "array", str: "string", bool: "bool", type(None): "null"}.get(type(value), "number")


def _summary(body: bytes) -> str:
    if not body:
        return "<empty>"
    if body[:1] == b"{":
        return body[:_SUMMARY].decode(errors="replace") + (" ..." if len(body) > _SUMMARY else "")
    return body[:_SUMMARY].hex() + (" ..." if len(body) > _SUMMARY else "")


def _check_type(kind: Kind, document: dict[str, Any]) -> None:
    """Kind and apiVersion may be absent; if present, they must match the URL."""
    version, name = document.get("apiVersion") or kind.api_version, document.get("kind") or kind.kind
    if not isinstance(version, str) or not isinstance(name, str):
        raise BadRequest(
            f"the object provided is unrecognized (must be of type {kind.kind}): couldn't get version/kind"
        )
    if (version, kind.kind) == _OLDER_EVICTION:
        version = kind.api_version
    if version != kind.api_version:
        raise BadRequest(
            f"the API version in the data ({version}) does not match "
            f"the expected API version ({kind.api_version})"
        )
    if name == kind.kind:
        return
    if kinds.by_kind(version, name) is None:
        why = f'no kind "{name}" is registered for version "{version}" in scheme "{_SCHEME}"'
    else:
        home = kind.group.partition(".")[0] or "core"
        why = f"converting (v1.{name}) to ({home}.{kind.kind}): unknown conversion"
    raise _cannot_handle(kind, why, name=name)


def _cannot_handle(kind: Kind, why: str, *, name: str = "") -> BadRequest:
    return BadRequest(
        f'{name or kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {why}'
    )


def _invalid_patch(shown: str, why: str) -> Invalid:
    quoted = msgspec.json.encode(shown).decode()
    return Invalid.of("", "", [Cause("FieldValueInvalid", f"Invalid value: {quoted}: {why}", "patch")])
