"""JSON bodies as plain data, with the paths of duplicate members. See `yaml_text` for YAML.

Parsing with duplicate detection is slow. So the fast parser runs first, and the number of members in its
result is compared with the number of keys in the text; only if they differ does the slow parser run. The
count of keys may be too high, never too low: that costs time, but misses no duplicate.
"""

import json
import re
from typing import Any

import msgspec

from volplane.apiserver.decode.limits import MalformedBody, check_values

# An unescaped quote and a colon: the end of a key.
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
    """The parse error in Go's words, where we know them."""
    try:
        json.loads(body)
    except json.JSONDecodeError as found:
        place = found.pos
        if found.msg.startswith("Illegal trailing comma"):  # Python 3.13 and later: where the comma is
            place = len(found.doc) - len(found.doc[place + 1 :].lstrip())
        if place >= len(found.doc.rstrip()) or found.msg.startswith("Unterminated string"):
            return "unexpected end of JSON input"
        where = _GO_MESSAGES.get(found.msg, "looking for beginning of value")
        return f"invalid character {found.doc[place]!r} {where}"
    except (ValueError, RecursionError):
        pass
    return str(error)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its duplicate members."""


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


# The order of findings


def order_by_document(body: bytes, duplicates: list[str], unknown: list[str]) -> list[tuple[str, bool]]:
    """The paths of both, as they come in the text, with whether the field is unknown.

    A field that is unknown and occurs twice is reported as unknown only.
    """
    found: dict[str, bool] = {}
    _walk_in_order(json.loads(body, object_pairs_hook=_Pairs), "", set(duplicates), set(unknown), found)
    return list(found.items())


def _walk_in_order(
    value: Any, path: str, duplicates: set[str], unknown: set[str], found: dict[str, bool]
) -> None:
    if isinstance(value, _Pairs):
        seen: set[str] = set()
        for key, inner in value:
            here = f"{path}.{key}" if path else key
            if here in unknown:
                found.setdefault(here, True)
                continue
            if key in seen and here in duplicates:
                found.setdefault(here, False)
            seen.add(key)
            _walk_in_order(inner, here, duplicates, unknown, found)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            _walk_in_order(inner, f"{path}[{at}]", duplicates, unknown, found)


_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def order_by_key(paths: list[str]) -> list[str]:
    """Paths in the order of sorted members, in which Go encodes what it has read from YAML or patched."""
    return sorted(paths, key=lambda path: [(int(at or 0), key) for at, key in _STEP.findall(path)])
