"""Answers as EC2 writes them: a list is a set of `<item>`, None is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias
from xml.sax.saxutils import escape

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'

Value: TypeAlias = "str | int | bool | Mapping[str, Value] | Sequence[Value] | None"


def answer(action: str, request_id: str, content: Mapping[str, Value]) -> bytes:
    inner = "".join(_element("requestId", request_id)) + "".join(_children(content))
    return f'{_HEAD}<{action}Response xmlns="{NAMESPACE}">{inner}</{action}Response>'.encode()


def error(code: str, message: str, request_id: str) -> bytes:
    tree: dict[str, Value] = {
        "Errors": {"Error": {"Code": code, "Message": message}},
        "RequestID": request_id,
    }
    return f"{_HEAD}<Response>{''.join(_children(tree))}</Response>".encode()


def _children(content: Mapping[str, Value]) -> Iterator[str]:
    for name, value in content.items():
        if value is not None:
            yield from _element(name, value)


def _element(name: str, value: Value) -> Iterator[str]:
    yield f"<{name}>"
    match value:
        case bool():
            yield "true" if value else "false"
        case str() | int():
            yield escape(_printable(str(value)))
        case Mapping():
            yield from _children(value)
        case Sequence():
            for item in value:
                yield from _element("item", item)
    yield f"</{name}>"


def _printable(text: str) -> str:
    # XML 1.0 has no way to write most control characters, not even escaped.
    return "".join(c for c in text if c >= " " or c in "\t\n\r")
