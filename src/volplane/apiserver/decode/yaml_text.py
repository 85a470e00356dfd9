"""YAML bodies as plain data, with a message for each duplicate key.

The document is built from libyaml's events, not by its composer, which recurses for each level and crashes
the process on deep nesting. So depth and values are counted as they come, and aliases as well: a few lines of
them can expand to more than the memory.
"""

from __future__ import annotations

import math
from typing import Any

import yaml
from msgspec import Struct
from yaml.nodes import ScalarNode

from volplane.apiserver.decode.limits import MAX_DEPTH, MAX_VALUES, MalformedBody, too_many_values

MAX_REPEATED = 3 * 1024 * 1024  # total size that aliases may expand to

_TAG = "tag:yaml.org,2002:"
_TEXT, _MERGE, _TIMESTAMP = f"{_TAG}str", f"{_TAG}merge", f"{_TAG}timestamp"
_KNOWN = frozenset(_TAG + name for name in ("null", "bool", "int", "float", "binary"))


class _Loader(yaml.CSafeLoader):
    """Parses events and resolves the types of plain scalars."""


class _OpenCollection(Struct):
    """A list or mapping that has not ended."""

    made: list[Any] | dict[str, Any]
    anchor: str | None
    weight: int = 1  # size with everything inside
    key: Any = None  # whose value comes next
    has_key: bool = False
    key_line: int = 0
    merged: list[dict[str, Any]] = []  # mappings merged by `<<`, by precedence


class _MergeKey:
    """The key `<<`."""


def parse_yaml(body: bytes) -> tuple[Any, list[str]]:
    """Raises MalformedBody and TooLarge."""
    loader = _Loader(body)
    try:
        reader = _YamlReader(loader)
        return reader.read(), reader.duplicates
    except yaml.YAMLError as error:
        raise MalformedBody(f"error converting YAML to JSON: yaml: {_yaml_error(error)}") from error
    except MalformedBody:
        raise
    except (ValueError, OverflowError) as error:
        raise MalformedBody(f"error converting YAML to JSON: {error}") from error
    finally:
        loader.dispose()


class _YamlReader:
    def __init__(self, loader: _Loader) -> None:
        self._loader = loader
        self._open: list[_OpenCollection] = []
        self._anchors: dict[str, tuple[Any, int] | None] = {}  # None: not ended yet
        self._repeated = 0
        self._document: Any = None
        self._line = 0
        self.duplicates: list[str] = []

    def read(self) -> Any:
        """The only document; a second one is an error, as upstream."""
        values = documents = 0
        while True:
            event: Any = self._loader.get_event()
            self._line = event.start_mark.line + 1
            match event:
                case yaml.ScalarEvent():
                    values += 1
                    self._put(self._scalar(event), len(event.value) + 1, event.anchor)
                case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                    values += 1
                    self._begin(event)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    self._end()
                case yaml.AliasEvent():
                    values += 1
                    self._alias(event.anchor or "")
                case yaml.DocumentStartEvent():
                    documents += 1
                    if documents > 1:
                        raise self._wrong("expected a single document in the stream")
                case yaml.StreamEndEvent():
                    return self._document
            if values > MAX_VALUES:
                raise too_many_values()

    # Values

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        tag = event.tag
        if tag is None or tag == "!":
            resolve: Any = self._loader.resolve
            tag = resolve(ScalarNode, event.value, event.implicit)
        if tag in (_TEXT, _TIMESTAMP):
            return event.value
        if tag == _MERGE:
            return _MergeKey
        if tag not in _KNOWN:
            raise self._wrong(f"cannot read tag {tag!r}")
        node = ScalarNode(tag, event.value)
        value = self._loader.construct_object(node)
        self._loader.constructed_objects.clear()  # or every node would be kept
        if isinstance(value, float) and not math.isfinite(value):
            raise MalformedBody(f"error converting YAML to JSON: json: unsupported value: {event.value}")
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def _begin(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise MalformedBody("error converting YAML to JSON: exceeded max depth")
        is_map = isinstance(event, yaml.MappingStartEvent)
        wanted = self._loader.DEFAULT_MAPPING_TAG if is_map else self._loader.DEFAULT_SEQUENCE_TAG
        if event.tag not in (None, "!", wanted):
            raise self._wrong(f"cannot read tag {event.tag!r}")
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        self._open.append(_OpenCollection({} if is_map else [], event.anchor))

    def _end(self) -> None:
        ended = self._open.pop()
        if ended.merged:
            assert isinstance(ended.made, dict)
            own = dict(ended.made)
            ended.made.clear()
            for other in reversed(ended.merged):
                ended.made.update(other)
            ended.made.update(own)
        self._put(ended.made, ended.weight, ended.anchor)

    def _alias(self, name: str) -> None:
        if name not in self._anchors:
            raise MalformedBody(f"error converting YAML to JSON: yaml: unknown anchor '{name}' referenced")
        known = self._anchors[name]
        if known is None:
            raise MalformedBody(f"error converting YAML to JSON: yaml: anchor '{name}' value contains itself")
        value, weight = known
        self._repeated += weight
        if self._repeated > MAX_REPEATED:
            raise MalformedBody("error converting YAML to JSON: yaml: document contains excessive aliasing")
        self._put(value, weight, None)

    def _put(self, value: Any, weight: int, anchor: str | None) -> None:
        """Add a complete value to the open collection."""
        if anchor is not None:
            self._anchors[anchor] = value, weight
        if not self._open:
            self._document = value
            return
        holder = self._open[-1]
        holder.weight += weight
        if isinstance(holder.made, list):
            holder.made.append("<<" if value is _MergeKey else value)
        elif not holder.has_key:
            holder.key, holder.has_key = value if value is _MergeKey else _key(value), True
            holder.key_line = self._line
        else:
            self._member(holder, holder.made, "<<" if value is _MergeKey else value)
            holder.has_key = False

    def _member(self, holder: _OpenCollection, made: dict[str, Any], value: Any) -> None:
        if holder.key is _MergeKey:
            others = value if isinstance(value, list) else [value]
            if not all(isinstance(other, dict) for other in others):
                raise self._wrong("map merge requires map or sequence of maps as the value")
            holder.merged += others
            return
        if holder.key in made:
            self.duplicates.append(f'line {holder.key_line}: key "{holder.key}" already set in map')
        made[holder.key] = value

    def _wrong(self, words: str) -> MalformedBody:
        return MalformedBody(f"error converting YAML to JSON: yaml: line {self._line}: {words}")


def _key(value: Any) -> str:
    """JSON keys are strings."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise MalformedBody(f"error converting YAML to JSON: unsupported map key of type: {type(value).__name__}")


def _yaml_error(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"line {mark.line + 1}: {problem}" if mark is not None else problem
