"""Request bodies as plain data: JSON (and YAML, see `yaml_text`), with the paths of members that occur twice.

Reading JSON twice costs more than the rest of a write together, so the fast parser reads it once and the
members of the result are counted against the keys in the text; only when they differ is the body read again
by the parser that sees duplicates. Counting may report too many (never too few), which costs time and
nothing else.
"""

import json
import re
from typing import Any

import msgspec

from volplane.apiserver.decode.limits import MalformedBody, check_values

# A quote that is not escaped, then a colon: the end of a member's name.
_KEY_END = re.compile(rb'(?<!\\)"[ \t\r\n]*:')
_decoder = msgspec.json.Decoder()


def parse_json(body: bytes) -> tuple[Any, list[str]]:
    """The document, and the path of each duplicate member (`spec.x`, `[0].path`)."""
    check_values(body)
    try:
        document = _decoder.decode(body)
        if len(_KEY_END.findall(body)) == _members(document):
            return document, []
        return document, _json_duplicates(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedBody(_go_json_error(body, error)) from error


def _members(value: Any) -> int:
    if type(value) is dict:
        return len(value) + sum([_members(v) for v in value.values() if type(v) in (dict, list)])
    if type(value) is list:
        return sum([_members(v) for v in value if type(v) in (dict, list)])
    return 0


_GO_MESSAGES = {
    "Expecting value": "looking for beginning of value",
    "Expecting property name enclosed in double quotes": "looking for beginning of object key string",
    "Illegal trailing comma before end of object": "looking for beginning of object key string",
    "Expecting ':' delimiter": "after object key",
    "Expecting ',' delimiter": "after object key:value pair",
    "Extra data": "after top-level value",
    "Invalid control character at": "in string literal",
}


def _go_json_error(body: bytes, error: Exception) -> str:
    """The complaint in the API's words where they are well known."""
    try:
        json.loads(body)
    except json.JSONDecodeError as found:
        if found.pos >= len(found.doc.rstrip()) or found.msg.startswith("Unterminated string"):
            return "unexpected end of JSON input"
        where = _GO_MESSAGES.get(found.msg, "looking for beginning of value")
        return f"invalid character {found.doc[found.pos]!r} {where}"
    except (ValueError, RecursionError):
        pass
    return str(error)


class _Pairs(list[tuple[str, Any]]):
    """An object with its duplicates still there."""


def _json_duplicates(body: bytes) -> list[str]:
    found: list[str] = []
    _walk_pairs(json.loads(body, object_pairs_hook=_Pairs), "", found)
    return found


def _walk_pairs(value: Any, path: str, found: list[str]) -> None:
    if isinstance(value, _Pairs):
        seen: set[str] = set()
        for key, inner in value:
            here = f"{path}.{key}" if path else key
            if key in seen:
                found.append(here)
            seen.add(key)
            _walk_pairs(inner, here, found)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            _walk_pairs(inner, f"{path}[{at}]", found)
