"""A role's options are one Struct, and its flags are the fields of that Struct.

`--leader-election-namespace=x` sets `leader_election_namespace`. The same flags work on the command line and
in a manifest's `args`; tests build the Struct directly. A `Duration` holds seconds and is typed `15s` or
`1m30s`. Flags of upstream's logging (`-v=5`) are accepted and ignored.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta, Struct

from volplane.base.units import format_duration, parse_duration

T = TypeVar("T", bound=Struct)

_IS_DURATION = {"duration": True}
Duration = Annotated[float, Meta(extra=_IS_DURATION)]  # seconds


def about(text: str, *, value: str = "") -> Meta:
    """The help text of a flag. `value` is the placeholder for what the user types, such as FILE."""
    return Meta(description=text, extra={"value": value})


# Flags of upstream's logging and Go runtime that are ignored: with a value, and without one.
IGNORED = frozenset(
    {
        "v",
        "vmodule",
        "stderrthreshold",
        "log_backtrace_at",
        "log_dir",
        "log_file",
        "log_file_max_size",
        "log-flush-frequency",
        "logging-format",
    }
)
SWITCHES = frozenset(
    {
        "logtostderr",
        "alsologtostderr",
        "add_dir_header",
        "one_output",
        "skip_headers",
        "skip_log_headers",
        "log-json-format",
        "enable-pprof",
        "automaxprocs",
    }
)


class BadFlag(ValueError):
    """An unknown flag or an invalid value. The message names the flag and the reason."""


class Flag(Struct, frozen=True):
    """One field of an options Struct as a command-line flag."""

    name: str
    field: str
    type: Any
    default: Any
    required: bool
    repeated: bool = False
    is_duration: bool = False
    about: str = ""  # the help text, from `about(…)`
    value: str = ""  # what the user types, such as FILE

    def read(self, text: str) -> Any:
        """Parse a value. Raises BadFlag."""
        try:
            return parse_seconds(text) if self.is_duration else _read(self.type, text)
        except ValueError as error:
            raise BadFlag(f'invalid value "{text}" for flag --{self.name}: {error}') from error

    @property
    def default_text(self) -> str:
        """The default as the user would type it; empty without a default."""
        default = self.default
        if default is None:
            return ""
        if isinstance(default, bool):
            return "true" if default else "false"
        if self.is_duration:
            return format_duration(default)
        if isinstance(default, float):
            return f"{default:g}"
        if isinstance(default, Mapping):
            return ",".join(f"{key}={value}" for key, value in default.items())
        return ",".join(map(str, default)) if self.repeated else str(default)

    @property
    def placeholder(self) -> str:
        """The placeholder in the help text where there is no default to show."""
        if self.value:
            return self.value
        if self.is_duration:
            return "DURATION"
        if self.repeated:
            return "VALUE,…"
        if get_origin(self.type) is not None:
            return "KEY=VALUE,…"
        return {int: "N", float: "NUMBER"}.get(self.type, "VALUE")


@cache  # every container of a built-in image asks, and reading annotations takes a millisecond
def flags(settings: type[Struct]) -> Mapping[str, Flag]:
    """The flags of an options Struct by name."""
    hints = get_type_hints(settings)
    notes = get_type_hints(settings, include_extras=True)
    found: dict[str, Flag] = {}
    for info in msgspec.structs.fields(settings):
        required = info.default is NODEFAULT and info.default_factory is NODEFAULT
        default = info.default if info.default is not NODEFAULT else None
        if info.default_factory is not NODEFAULT:
            default = info.default_factory()
        kind = _unwrap_optional(hints[info.name])
        name = info.name.replace("_", "-")
        meta = _metas(notes[info.name])
        extras = {key: value for each in meta for key, value in (each.extra or {}).items() if value}
        found[name] = Flag(
            name,
            info.name,
            kind,
            default,
            required,
            repeated=get_origin(kind) is tuple,
            is_duration="duration" in extras,
            about=next((each.description for each in meta if each.description), ""),
            value=extras.get("value", ""),
        )
    return found


def parse(
    settings: type[T],
    arguments: Sequence[str],
    *,
    given: Mapping[str, Any] | None = None,
    unused: Collection[str] = (),
) -> T:
    """Parse arguments into options. `given`: fields that no flag sets; `unused`: flags to ignore, with their
    values. Raises BadFlag.
    """
    known = flags(settings)
    values: dict[str, Any] = dict(given or {})
    for name, text in _pairs(arguments, known):
        flag = known.get(name)
        if flag is None and (name in IGNORED or name in SWITCHES or name in unused):
            continue
        if flag is None:
            raise BadFlag(f"unknown flag: --{name}")
        value = flag.read(text)
        values[flag.field] = (*values.get(flag.field, ()), *value) if flag.repeated else value
    missing = [f.name for f in known.values() if f.required and f.field not in values]
    if missing:
        raise BadFlag(f"required flag not set: --{missing[0]}")
    try:
        return settings(**values)
    except ValueError as error:  # checks of the Struct itself, such as two flags that exclude each other
        raise BadFlag(str(error)) from error


def _pairs(arguments: Sequence[str], known: Mapping[str, Flag]) -> Iterator[tuple[str, str]]:
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            raise BadFlag(f"unexpected argument: {argument}")
        name, equals, text = argument.lstrip("-").partition("=")
        flag = known.get(name)
        if equals:
            yield name, text
        elif (flag is not None and flag.type is bool) or (flag is None and name in SWITCHES):
            yield name, "true"
        else:
            yield name, _next_value(rest, name)


def _next_value(rest: Iterator[str], name: str) -> str:
    if (text := next(rest, None)) is None:
        raise BadFlag(f"flag needs a value: --{name}")
    return text


def _metas(hint: Any) -> list[Meta]:
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return [note for note in notes if isinstance(note, Meta)]


def _unwrap_optional(hint: Any) -> Any:
    """The type without None: `str` for `str | None`."""
    members: Iterable[Any] = get_args(hint)
    if NoneType in members:
        return next(m for m in members if m is not NoneType)
    return hint


def _read(kind: Any, text: str) -> Any:
    if kind is bool:
        if text.lower() in ("true", "t", "1"):
            return True
        if text.lower() in ("false", "f", "0"):
            return False
        raise ValueError("neither true nor false")
    if kind is int:
        try:
            return int(text)
        except ValueError:
            raise ValueError("not a whole number") from None
    if kind is float:
        try:
            return float(text)
        except ValueError:
            raise ValueError("not a number") from None
    if get_origin(kind) is tuple:
        return tuple(_read(get_args(kind)[0], part) for part in text.split(",") if part)
    if get_origin(kind) is not None and issubclass(get_origin(kind), Mapping):
        kinds = get_args(kind)
        pairs = (part.split("=", 1) for part in text.split(",") if part)
        return {name: _read(kinds[1], value) for name, value in pairs}
    return msgspec.convert(text, kind)


def parse_seconds(text: str) -> float:
    """Seconds from `15s`, `1m30s`, or a bare number. Raises ValueError."""
    try:
        seconds = float(text)
    except ValueError:
        return parse_duration(text)
    if not math.isfinite(seconds):
        raise ValueError("not a finite number of seconds")
    return seconds
