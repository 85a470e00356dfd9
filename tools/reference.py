"""Write docs/reference.md: every verb with its flags, every kind that is served, every metric.

The page is generated from the code; a test fails if it is out of date.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click

import volplane as package
from volplane.api import kinds
from volplane.base import metrics
from volplane.cli import VERBS, volplane
from volplane.cli.options import FlagOption

PAGE = Path(__file__).parent.parent / "docs" / "reference.md"


def page() -> str:
    return "\n".join([*_head(), *_verbs(), *_kinds(), *_metrics()]) + "\n"


def _head() -> Iterator[str]:
    yield "# Reference"
    yield ""
    yield "Generated from the code by `make reference`. Durations are typed `15s` or `1m30s`."
    yield "A boolean flag alone means true."
    yield ""


def _verbs() -> Iterator[str]:
    yield "## Verbs and flags"
    context = click.Context(volplane, info_name="volplane")
    for name, about in VERBS.items():
        command = volplane.get_command(context, name)
        assert command is not None
        yield ""
        yield f"### `volplane {name}`"
        yield ""
        yield f"{about[0].upper()}{about[1:]}."
        if isinstance(command, click.Group):
            for inner, each in command.commands.items():
                yield ""
                text = each.get_short_help_str(100)
                yield f"`volplane {name} {inner}`: {text[0].lower()}{text[1:]}"
                yield from _flags(each)
        else:
            yield from _flags(command)


def _flags(command: click.Command) -> Iterator[str]:
    yield ""
    yield "| flag | default | |"
    yield "|---|---|---|"
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            yield _flag(parameter)


def _flag(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return f"| `{(parameter.name or '').upper()}` | {'required' if parameter.required else ''} | |"
    assert isinstance(parameter, click.Option)
    return f"| `{max(parameter.opts, key=len)}` | {_default(parameter)} | {parameter.help or ''} |"


def _default(option: click.Option) -> str:
    """The default as the user types it; empty if there is none."""
    if isinstance(option, FlagOption):
        text = "" if option.default_text == "false" else option.default_text
    else:
        empty = option.default in (None, False, "", ()) or "UNSET" in str(option.default)
        text = "" if empty else option.metavar or str(option.default)
    return f"`{text}`" if text else ""


def _kinds() -> Iterator[str]:
    yield ""
    yield "## Kinds"
    yield ""
    yield "| kind | group and version | name | short | namespaced | below it |"
    yield "|---|---|---|---|---|---|"
    for kind in kinds.ALL:
        below = ", ".join(s.name for s in kind.subresources)
        short = ", ".join(kind.short_names)
        scope = "yes" if kind.namespaced else "no"
        yield f"| {kind.kind} | `{kind.api_version}` | {kind.plural} | {short} | {scope} | {below} |"


def _metrics() -> Iterator[str]:
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    yield ""
    yield "## Metrics"
    yield ""
    yield "Labels are in braces. Histograms have `_bucket`, `_sum` and `_count`."
    yield ""
    yield "| metric | type | |"
    yield "|---|---|---|"
    for name, kind, labels, text in metrics.list_declared():
        if not name.startswith("test_"):  # declared by a test in the same process
            shown = f"{name}{{{','.join(labels)}}}" if labels else name
            yield f"| `{shown}` | {kind} | {text} |"


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"wrote {PAGE}\n")
