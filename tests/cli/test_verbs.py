"""How verbs are loaded, and their help texts."""

from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest

from volplane.cli import VERBS, volplane

LOADS = """
import gc
from volplane.cli import volplane
assert volplane.get_command(None, "env") is not None
assert volplane.get_command(None, "fly") is None
assert gc.isenabled()
print(gc.get_freeze_count())
"""


def test_what_a_verb_loads_stays_and_garbage_is_looked_for_again() -> None:
    done = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10_000


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_says_what_it_is_and_how_it_is_typed(verb: str) -> None:
    command = volplane.get_command(click.Context(volplane), verb)
    assert command is not None
    for each in command.commands.values() if isinstance(command, click.Group) else [command]:
        context = click.Context(each, info_name=verb)
        for parameter in each.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                shown = parameter.get_help_record(context)
                assert shown is not None
                assert shown[1], f"--{parameter.name} has no help text"
                types = r"\b(TEXT|STR|INT|INTEGER|FLOAT|BOOL|BOOLEAN|TUPLE|MAPPING)\b"
                assert not re.search(types, shown[0]), shown[0]
