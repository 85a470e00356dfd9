"""Click options out of a settings Struct: one option per field, upstream's flag names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from msgspec import Struct

from volplane.base.settings import IGNORED, SWITCHES, BadFlag, Flag, flags, parse

T = TypeVar("T", bound=Struct)
Verb = Callable[..., None]


class _Value(click.ParamType[Any]):
    """A field's own spelling: durations like 15s, lists with commas."""

    def __init__(self, flag: Flag) -> None:
        self.flag = flag
        self.name = "duration" if flag.type is float else getattr(flag.type, "__name__", "text")

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.flag.read(value)
        except BadFlag as error:
            self.fail(str(error), param, context)


def options(
    settings: type[Struct],
    *,
    hide: tuple[str, ...] = (),
    given: Mapping[str, Any] | None = None,
    sidecar: bool = False,
) -> Callable[[Verb], Verb]:
    """Give a verb the flags of `settings`; it gets `settings=` ready made, with `given` for hidden ones.

    A `sidecar` takes flags of upstream's logging and run time, too, as manifests have them, and ignores them.
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
            verb(settings=made, **values)

        run.__name__, run.__doc__ = verb.__name__, verb.__doc__
        made: Verb = run
        for flag in reversed(shown):
            made = _option(flag)(made)
        for name in sorted((IGNORED | SWITCHES) - known.keys()) if sidecar else ():
            made = _unheeded(name)(made)
        extra = getattr(verb, "__click_params__", [])
        made.__click_params__ = [*extra, *getattr(made, "__click_params__", [])]  # type: ignore[attr-defined]
        return made

    return decorate


def _option(flag: Flag) -> Callable[[Verb], Verb]:
    if flag.type is bool:
        # As upstream's: `--x` is true, `--x=false` is not.
        value = "true" if flag.default else "false"
        return click.option(
            f"--{flag.name}",
            flag.field,
            is_flag=False,
            flag_value="true",
            type=_Value(flag),
            default=value,
            show_default=True,
            help=flag.about,
        )
    default = None if flag.required or flag.default in (None, "", ()) else flag.default
    return click.option(
        f"--{flag.name}",
        flag.field,
        type=_Value(flag),
        default=default,
        show_default=default is not None,
        help=flag.about,
    )


def _unheeded(name: str) -> Callable[[Verb], Verb]:
    spellings = (f"--{name}", "-v") if name == "v" else (f"--{name}",)
    alone = "true" if name in SWITCHES else None  # a switch may come without a value
    return click.option(*spellings, hidden=True, expose_value=False, is_flag=False, flag_value=alone)
