"""Click options from an options Struct: one per field, with upstream's flag names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
from msgspec import Struct, structs

from volplane.base.settings import IGNORED, SWITCHES, BadFlag, Flag, flags, parse, parse_seconds

T = TypeVar("T", bound=Struct)
Verb = Callable[..., None]
LEVELS = click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False)  # of --log-level


class FlagOption(click.Option):
    """An option whose help shows the default as the user types it: `--timeout 15s`."""

    def __init__(self, names: Sequence[str], *, default_text: str = "", **options: Any) -> None:
        super().__init__(names, **options)
        self.default_text = default_text

    def get_help_record(self, context: click.Context) -> tuple[str, str] | None:
        if self.hidden:
            return None
        names = ", ".join(sorted(self.opts, key=len))
        if self.flag_value == "true":  # a boolean: `--x` is true, `--x=false` is not
            return f"{names}=true" if self.default_text == "true" else names, self.help or ""
        return f"{names} {self.default_text or self.metavar}", self.help or ""


class _FlagValue(click.ParamType[Any]):
    """A value as users type it: durations like 15s, lists with commas."""

    def __init__(self, flag: Flag) -> None:
        self.flag = flag
        self.name = flag.placeholder

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.flag.read(value)
        except BadFlag as error:
            self.fail(str(error), param, context)


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float:
        try:
            return parse_seconds(value) if isinstance(value, str) else float(value)
        except ValueError as error:
            self.fail(str(error), param, context)


DURATION = _Duration()  # seconds, typed `90` or `1m30s`


def options(
    settings: type[Struct],
    *,
    hide: tuple[str, ...] = (),
    given: Mapping[str, Any] | None = None,
    sidecar: bool = False,
    argument: str = "settings",
) -> Callable[[Verb], Verb]:
    """Add the flags of `settings` to a verb, which is called with `settings=` or another argument.
    `given`: hidden values.

    A `sidecar` also accepts and ignores flags of upstream's logging and runtime, as manifests use them.
    """

    def decorate(verb: Verb) -> Verb:
        known = flags(settings)
        shown = [f for f in known.values() if f.field not in hide]

        def run(**values: Any) -> None:
            mine = {f.field: values.pop(f.field) for f in shown if f.field in values}
            chosen = {k: v for k, v in mine.items() if v is not None}
            try:
                made = parse(settings, [], given={**(given or {}), **chosen})
            except BadFlag as error:
                raise click.UsageError(str(error)) from error
            verb(**{argument: made}, **values)

        run.__name__, run.__doc__ = verb.__name__, verb.__doc__
        made: Verb = run
        for flag in reversed(shown):
            made = _option(flag)(made)
        for name in sorted((IGNORED | SWITCHES) - known.keys()) if sidecar else ():
            made = _ignored_option(name)(made)
        extra = getattr(verb, "__click_params__", [])
        made.__click_params__ = [*extra, *getattr(made, "__click_params__", [])]  # type: ignore[attr-defined]
        return made

    return decorate


def command_words(settings: Struct, *, hide: tuple[str, ...] = ()) -> list[str]:
    """The options that are not the default, as words of a command line."""
    words = []
    for flag in flags(type(settings)).values():
        value = getattr(settings, flag.field)
        if flag.field not in hide and value != flag.default:
            words.append(f"--{flag.name}={structs.replace(flag, default=value).default_text}")
    return words


def _option(flag: Flag) -> Callable[[Verb], Verb]:
    shared: dict[str, Any] = {
        "cls": FlagOption,
        "type": _FlagValue(flag),
        "default_text": flag.default_text,
        "metavar": flag.placeholder,
        "help": flag.about,
    }
    if flag.type is bool:
        shared |= {"is_flag": False, "flag_value": "true", "default": flag.default_text}
    else:
        shared["default"] = None if flag.required or flag.default in (None, "", ()) else flag.default
    return click.option(f"--{flag.name}", flag.field, **shared)


def _ignored_option(name: str) -> Callable[[Verb], Verb]:
    spellings = (f"--{name}", "-v") if name == "v" else (f"--{name}",)
    alone = "true" if name in SWITCHES else None  # a switch needs no value
    return click.option(*spellings, hidden=True, expose_value=False, is_flag=False, flag_value=alone)
