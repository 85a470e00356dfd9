"""The manual page: roff without warnings, and every verb and option in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import click
import pytest

from tools import man_page
from volplane.cli import VERBS, volplane


@pytest.fixture(scope="module")
def shown() -> str:
    """The page as `man` shows it."""
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-rLL=500n"],
        input=man_page.page(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "GROFF_NO_SGR": "1"},
    )
    assert done.stderr == ""
    return re.sub(r".\x08", "", done.stdout)


def test_it_is_ascii() -> None:
    assert man_page.page().isascii()


@pytest.mark.parametrize("verb", VERBS)
def test_it_has_every_verb_with_its_options(verb: str, shown: str) -> None:
    command = volplane.get_command(click.Context(volplane), verb)
    assert command is not None
    start = shown.index(f"\n   volplane {verb}\n")
    end = shown.find("\n   volplane ", start + 1)
    section = " ".join(shown[start : end if end > 0 else None].replace("\u2010", "-").split())
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert max(parameter.opts, key=len) in section
            assert parameter.help
            assert " ".join(parameter.help.replace("`", "").split()) in section


def test_it_names_the_exit_codes(shown: str) -> None:
    assert re.search(r"^EXIT STATUS\n.*^ {7}3 +something waits", shown, re.MULTILINE | re.DOTALL)
