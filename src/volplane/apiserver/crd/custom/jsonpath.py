"""JSONPath as printer columns use it: members, indices, `[*]`, and `[?(@.type=="Ready")]`.

Any other path finds nothing, so that its column stays empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

Step = Callable[[Any], Iterator[Any]]

_STEP = re.compile(
    r"""
    \.(?P<name>(?:[^.\[\]\\'"(){}?@]|\\.)+)
  | \.?\[\s*(?P<quote>['"])(?P<quoted>(?:(?!(?P=quote))[^\\]|\\.)*)(?P=quote)\s*\]
  | \.?\[\s*(?P<index>-?\d{1,9})\s*\]
  | \.?\[\s*(?P<start>(?:-?\d{1,9})?):(?P<stop>(?:-?\d{1,9})?)\s*\]
  | \.?\[\s*\*\s*\]|\.\*
  | \.?\[\?\((?P<test>[^\]]*)\)\s*\]
    """,
    re.X,
)
_TEST = re.compile(r"@(?P<path>[^=!<>\s]*)\s*(?:(?P<sign>==|!=|<=|>=|<|>)\s*(?P<value>.+))?")


class InvalidJSONPath(ValueError):
    pass


@lru_cache(maxsize=1024)
def compile(path: str) -> Callable[[Any], list[Any]]:
    """Return a function that finds the values at a path. Raise InvalidJSONPath."""
    steps = list(_steps(path))

    def find(value: Any) -> list[Any]:
        found = [value]
        for step in steps:
            found = [inner for held in found for inner in step(held)]
        return found

    return find


def _steps(path: str) -> Iterator[Step]:
    at = 0
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            if path[at:] == ".":
                return
            raise InvalidJSONPath(path)
        yield _step(found)
        at = found.end()


def _step(found: re.Match[str]) -> Step:
    if found["name"] is not None:
        return _member(re.sub(r"\\(.)", r"\1", found["name"]))
    if found["quote"] is not None:
        return _member(re.sub(r"\\(.)", r"\1", found["quoted"]))
    if found["index"] is not None:
        return _item(int(found["index"]))
    if found["test"] is not None:
        return _filter(found["test"])
    if found["start"] is not None:
        start, stop = (int(text) if text else None for text in found.group("start", "stop"))
        return lambda value: iter(value[start:stop] if isinstance(value, list) else ())
    return _all


def _member(name: str) -> Step:
    return lambda value: iter([value[name]] if isinstance(value, dict) and name in value else ())


def _item(at: int) -> Step:
    return lambda value: iter(
        [value[at]] if isinstance(value, list) and -len(value) <= at < len(value) else ()
    )


def _all(value: Any) -> Iterator[Any]:
    return iter(value if isinstance(value, list) else value.values() if isinstance(value, dict) else ())


def _filter(text: str) -> Step:
    found = _TEST.fullmatch(text.strip())
    if found is None:
        raise InvalidJSONPath(text)
    path = compile(found["path"])
    sign, wanted = found["sign"], _literal(found["value"])

    def step(value: Any) -> Iterator[Any]:
        for item in _all(value):
            given = path(item)
            if given and (not sign or _compares(given[0], sign, wanted)):
                yield item

    return step


def _literal(text: str | None) -> Any:
    if text is None:
        return None
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text)
    except ValueError:
        raise InvalidJSONPath(text) from None


def _compares(given: Any, sign: str, wanted: Any) -> bool:
    if isinstance(given, bool) is not isinstance(wanted, bool) or isinstance(given, str) is not isinstance(
        wanted, str
    ):
        return sign == "!="
    match sign:
        case "==":
            return bool(given == wanted)
        case "!=":
            return bool(given != wanted)
    if not isinstance(given, int | float | str):
        return False
    order = (given > wanted) - (given < wanted)
    return order in {"<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}[sign]


def members(path: str) -> tuple[str, ...]:
    """Return the names in a simple path such as `.spec.replicas`."""
    return tuple(path.removeprefix(".").split("."))


def get(value: Any, names: Iterable[str]) -> Any:
    """Return the value at a path of member names, or None."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value
