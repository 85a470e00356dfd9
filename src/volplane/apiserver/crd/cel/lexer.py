"""Split an expression into tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from volplane.apiserver.crd.cel.errors import CelCompileError

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*)
  | (?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
  | (?P<int>0x[0-9a-fA-F]+|\d+)(?P<unsigned>[uU]?)
  | (?P<text>(?P<prefix>[rR]?[bB]|[bB]?[rR]|)(?:\"\"\"(?P<a>.*?)(?<!\\)\"\"\"|'''(?P<b>.*?)(?<!\\)'''
      |"(?P<c>(?:[^"\\\n]|\\.)*)"|'(?P<d>(?:[^'\\\n]|\\.)*)'))
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<sign>&&|\|\||==|!=|<=|>=|\[\?|\.\?|[-+*/%!<>?:.,()\[\]{}])
    """,
    re.X | re.S,
)
RESERVED = frozenset(
    {
        "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop",
        "package", "namespace", "return", "var", "void", "while",
    }
)  # fmt: skip
_SIMPLE = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "`": "`", "?": "?",
}  # fmt: skip
_ESCAPE = re.compile(
    r"\\(x[0-9a-fA-F]{2}|X[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)", re.S
)


class CelToken(Struct, frozen=True):
    at: int
    kind: str  # value, word, sign, end
    text: str
    value: Any = None


def tokens(source: str) -> list[CelToken]:
    """Raise CelCompileError."""
    return [*_tokens(source), CelToken(len(source), "end", "<EOF>")]


def _tokens(source: str) -> Iterator[CelToken]:
    at = 0
    while at < len(source):
        found = _TOKEN.match(source, at)
        if found is None:
            raise CelCompileError(f"Syntax error: token recognition error at: '{source[at]}'", at)
        if found["float"]:
            yield CelToken(at, "value", found[0], float(found[0]))
        elif found["int"]:
            yield CelToken(at, "value", found[0], _integer(found, at))
        elif found["text"]:
            yield CelToken(at, "value", found[0], _text(found, at))
        elif found["word"]:
            yield CelToken(at, "word", found[0])
        elif found["sign"]:
            yield CelToken(at, "sign", found[0])
        at = found.end()


def _integer(found: re.Match[str], at: int) -> int:
    if found["unsigned"]:
        raise CelCompileError("unsigned numbers are not supported", at)
    text = found["int"]
    value = int(text, 16 if text.startswith("0x") else 10) if len(text) <= 100 else 1 << 64
    if value > 1 << 63:
        raise CelCompileError("invalid int literal", at)
    return value


def _text(found: re.Match[str], at: int) -> str | bytes:
    prefix = found["prefix"].lower()
    inside = next(part for part in found.group("a", "b", "c", "d") if part is not None)
    if "r" not in prefix:
        inside = _ESCAPE.sub(lambda m: _unescape(m[1], at), inside)
    return inside.encode() if "b" in prefix else inside


def _unescape(code: str, at: int) -> str:
    if code in _SIMPLE:
        return _SIMPLE[code]
    if code[0] in "xXuU" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code[0].isdigit() and len(code) == 3:
        return chr(int(code, 8))
    raise CelCompileError(f"Syntax error: invalid escape sequence: \\{code}", at)
