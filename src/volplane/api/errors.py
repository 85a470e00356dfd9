"""Errors of the API, a class for each Status reason.

APIError
  BadRequest 400 · Unauthorized 401 · Forbidden 403 · NotFound 404 · MethodNotAllowed 405 · NotAcceptable 406
  AlreadyExists 409 · Conflict 409 · Expired 410 · TooLarge 413 · UnsupportedMediaType 415 · Invalid 422
  TooManyRequests 429 · InternalError 500 · Unavailable 503 · Timeout 504 · InsufficientStorage 507

Callers catch `NotFound`; the server writes the Status of the exception that was raised, and the client turns
a Status back into the same class.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from msgspec import Struct

from volplane.api.kinds import Kind

MAX_CAUSES = 1000  # in one Status: an object within the limits can have tens of thousands of errors


class Cause(Struct, frozen=True):
    """One field that is wrong, and why."""

    reason: str
    message: str
    field: str = ""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


Causes = Iterable[Cause]


class APIError(Exception):
    """A Status that is not Success."""

    code: ClassVar[int] = 500
    reason: ClassVar[str] = "InternalError"

    def __init__(
        self,
        message: str = "",
        *,
        details: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = dict(details or {})
        self.metadata: dict[str, Any] = dict(metadata or {})

    @property
    def causes(self) -> list[Cause]:
        return [
            Cause(c.get("reason", ""), c.get("message", ""), c.get("field", ""))
            for c in self.details.get("causes", ())
        ]

    @property
    def retry_after(self) -> int:
        return int(self.details.get("retryAfterSeconds", 0))

    def status(self) -> dict[str, Any]:
        """The Status object on the wire."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
        }
        status["message"] = self.message
        if self.reason:
            status["reason"] = self.reason
        if self.details:
            status["details"] = self.details
        status["code"] = self.code
        return status


def _object_details(kind: Kind | None, name: str = "", resource: str = "") -> dict[str, Any]:
    group, plural = (kind.group, kind.plural) if kind else ("", resource)
    return {k: v for k, v in (("name", name), ("group", group), ("kind", plural)) if v}


def _subject(kind: Kind, name: str) -> str:
    return f'{kind.resource} "{name}"' if name else kind.resource


class BadRequest(APIError):
    code = 400
    reason = "BadRequest"


class Unauthorized(APIError):
    code = 401
    reason = "Unauthorized"

    def __init__(self, message: str = "Unauthorized", **more: Any) -> None:
        super().__init__(message, **more)


class Forbidden(APIError):
    code = 403
    reason = "Forbidden"

    @classmethod
    def to(cls, kind: Kind, name: str, why: str, causes: Iterable[Cause] = ()) -> Forbidden:
        return cls(
            f"{_subject(kind, name)} is forbidden: {why}",
            details=_with_causes(_object_details(kind, name), causes),
        )

    def status(self) -> dict[str, Any]:
        status = super().status()
        status.setdefault("details", {})
        return status


class NotFound(APIError):
    code = 404
    reason = "NotFound"

    @classmethod
    def of(cls, kind: Kind, name: str) -> NotFound:
        return cls(f'{kind.resource} "{name}" not found', details=_object_details(kind, name))

    @classmethod
    def path(cls) -> NotFound:
        return cls("the server could not find the requested resource")

    def status(self) -> dict[str, Any]:
        status = super().status()
        status.setdefault("details", {})
        return status


class MethodNotAllowed(APIError):
    code = 405
    reason = "MethodNotAllowed"

    @classmethod
    def of(cls, kind: Kind, action: str) -> MethodNotAllowed:
        return cls(
            f'{action} is not supported on resources of kind "{kind.resource}"', details=_object_details(kind)
        )


class NotAcceptable(APIError):
    code = 406
    reason = "NotAcceptable"


class AlreadyExists(APIError):
    code = 409
    reason = "AlreadyExists"

    @classmethod
    def of(cls, kind: Kind, name: str, *, deleting: bool = False) -> AlreadyExists:
        prefix = "object is being deleted: " if deleting else ""
        return cls(f'{prefix}{kind.resource} "{name}" already exists', details=_object_details(kind, name))


class Conflict(APIError):
    code = 409
    reason = "Conflict"

    MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"

    @classmethod
    def of(
        cls, kind: Kind, name: str, why: str = MODIFIED, *, resource: str = "", called: str = ""
    ) -> Conflict:
        """`called`: the kind in the details, if it is not the plural."""
        message = f'Operation cannot be fulfilled on {resource or kind.resource} "{name}": {why}'
        details = _object_details(kind, name)
        return cls(message, details={**details, "kind": called} if called else details)


class Expired(APIError):
    code = 410
    reason = "Expired"


class TooLarge(APIError):
    code = 413
    reason = "RequestEntityTooLarge"


class UnsupportedMediaType(APIError):
    code = 415
    reason = "UnsupportedMediaType"


class Invalid(APIError):
    code = 422
    reason = "Invalid"

    @classmethod
    def of(cls, kind: Kind | str, name: str, causes: Sequence[Cause], *, group: str = "") -> Invalid:
        word, group = (kind, group) if isinstance(kind, str) else (kind.kind, kind.group)
        subject = f"{word}.{group}" if group else word
        shown = causes[:MAX_CAUSES]
        listed = [str(c) for c in shown]
        if len(causes) > len(shown):
            listed.append(f"and {len(causes) - len(shown)} more")
        text = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
        details = {k: v for k, v in (("name", name), ("group", group), ("kind", word)) if v}
        return cls(f'{subject} "{name}" is invalid: {text}', details=_with_causes(details, shown))


class TooManyRequests(APIError):
    code = 429
    reason = "TooManyRequests"


class InternalError(APIError):
    code = 500
    reason = "InternalError"

    @classmethod
    def because(cls, why: object) -> InternalError:
        text = str(why)
        return cls(f"Internal error occurred: {text}", details={"causes": [{"message": text}]})


class Unavailable(APIError):
    code = 503
    reason = "ServiceUnavailable"


class Timeout(APIError):
    code = 504
    reason = "Timeout"


class InsufficientStorage(APIError):
    """The server's disk is full. Kubernetes has no such reason; the code is HTTP's."""

    code = 507
    reason = "InsufficientStorage"


def _with_causes(details: dict[str, Any], causes: Iterable[Cause]) -> dict[str, Any]:
    listed = [
        {k: v for k, v in (("reason", c.reason), ("message", c.message), ("field", c.field)) if v}
        for c in causes
    ]
    return {**details, "causes": listed} if listed else details


_BY_REASON: dict[str, type[APIError]] = {
    c.reason: c
    for c in (
        BadRequest, Unauthorized, Forbidden, NotFound, MethodNotAllowed, NotAcceptable, AlreadyExists,
        Conflict, Expired, TooLarge, UnsupportedMediaType, Invalid, TooManyRequests, InternalError,
        Unavailable, Timeout, InsufficientStorage,
    )
}  # fmt: skip
_BY_CODE = {c.code: c for c in reversed(_BY_REASON.values())}


def from_status(status: Mapping[str, Any], code: int = 0) -> APIError:
    """The exception of a Status."""
    number = int(status.get("code") or code or 500)
    reason = "Expired" if status.get("reason") == "Gone" else status.get("reason", "")
    kind = _BY_REASON.get(reason) or _BY_CODE.get(number, APIError)
    message = status.get("message") or f"the server answered {number}"
    return kind(message, details=status.get("details"), metadata=status.get("metadata"))


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def required_value(field: str, detail: str = "") -> Cause:
    return Cause("FieldValueRequired", f"Required value: {detail}" if detail else "Required value", field)


def invalid(field: str, value: object, detail: str) -> Cause:
    return Cause("FieldValueInvalid", f"Invalid value: {_to_json(value)}: {detail}", field)


def not_supported(field: str, value: object, allowed: Iterable[str]) -> Cause:
    listed = ", ".join(_to_json(a) for a in allowed)
    return Cause(
        "FieldValueNotSupported", f"Unsupported value: {_to_json(value)}: supported values: {listed}", field
    )


def forbidden(field: str, detail: str) -> Cause:
    return Cause("FieldValueForbidden", f"Forbidden: {detail}", field)


def duplicate(field: str, value: object) -> Cause:
    return Cause("FieldValueDuplicate", f"Duplicate value: {_to_json(value)}", field)


def not_found(field: str, value: object) -> Cause:
    return Cause("FieldValueNotFound", f"Not found: {_to_json(value)}", field)


def too_long(field: str, limit: int) -> Cause:
    return Cause("FieldValueTooLong", f"Too long: may not be more than {limit} bytes", field)


def too_many(field: str, count: int, limit: int) -> Cause:
    return Cause("FieldValueTooMany", f"Too many: {count}: must have at most {limit} items", field)
