"""EC2's XML responses: a list becomes `<item>` elements, None is omitted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias
from xml.sax.saxutils import escape

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
# XML 1.0 does not allow most control characters, not even escaped.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_needs_escaping = re.compile(r"[\x00-\x1f&<>]").search

Value: TypeAlias = "str | int | bool | Mapping[str, Value] | Sequence[Value] | None"


def answer(action: str, request_id: str, content: Mapping[str, Value]) -> bytes:
    inner = _children({"requestId": request_id, **content})
    return f'{_HEAD}<{action}Response xmlns="{NAMESPACE}">{inner}</{action}Response>'.encode()


def error(code: str, message: str, request_id: str) -> bytes:
    tree: dict[str, Value] = {
        "Errors": {"Error": {"Code": code, "Message": message}},
        "RequestID": request_id,
    }
    return f"{_HEAD}<Response>{_children(tree)}</Response>".encode()


def _children(content: Mapping[str, Value]) -> str:
    return "".join(
        [f"<{name}>{_content(value)}</{name}>" for name, value in content.items() if value is not None]
    )


def _content(value: Value) -> str:
    if isinstance(value, str):  # most values are texts without any special character
        return escape(_UNPRINTABLE.sub("", value)) if _needs_escaping(value) else value
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case dict():
            return _children(value)
        case list() | tuple():
            return "".join([f"<item>{_content(item)}</item>" for item in value])
    return ""
