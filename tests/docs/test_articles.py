"""Every command of docs/what-articles-get-wrong.md runs, in one shell, and prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from tests.support.up import BIN, Up

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

PAGE = Path(__file__).parent.parent.parent / "docs" / "what-articles-get-wrong.md"
MARK = "@@@ next command"


class Command(Struct):
    text: str
    shown: list[str]  # the output; `…` is any text, and a line of its own any lines


def commands(page: str) -> Iterator[Command]:
    for block in re.findall(r"```console\n(.*?)```", page, re.S):
        found: Command | None = None
        for line in block.splitlines():
            if line.startswith("$ "):
                if found is not None:
                    yield found
                found = Command(line.removeprefix("$ "), [])
            else:
                assert found is not None, f"output without a command: {line}"
                found.shown.append(line)
        if found is not None:
            yield found


def files(page: str) -> Iterator[tuple[str, str]]:
    yield from re.findall(r"`([a-z]+\.yaml)`[^`]*\n\n```yaml\n(.*?)```", page, re.S)


def pattern(shown: list[str]) -> str:
    lines = [".*" if line == "…" else re.escape(line).replace("…", "[^\n]*") for line in shown]
    return "\n".join(lines)


def run(up: Up, home: Path, script: str) -> list[str]:
    env = {**os.environ, "HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script],
        env=env,
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
    )
    return [part.strip("\n") for part in done.stdout.split(MARK)[1:]]


def test_every_command_prints_what_the_page_shows() -> None:
    page = PAGE.read_text()
    first, *rest = commands(page)
    program, verb, *flags = first.text.split()
    assert (program, verb) == ("volplane", "up")
    assert len(rest) > 60
    assert len(re.findall(r"^### \d+\.", page, re.M)) >= 26
    with tempfile.TemporaryDirectory(prefix="vp-") as home:
        for name, text in files(page):
            Path(home, name).write_text(text)
        place = Path(home, ".volplane")
        place.mkdir(mode=0o700)
        made = Up(*flags, directory=place)
        with made as up:
            outputs = run(up, Path(home), "\n".join(f"echo '{MARK}'\n{c.text}" for c in rest))
        assert made.leftovers() == {}
    assert len(outputs) == len(rest)
    wrong = [
        f"$ {command.text}\nprints:\n{output}\nnot:\n{chr(10).join(command.shown)}\n"
        for command, output in zip(rest, outputs, strict=True)
        if not re.fullmatch(pattern(command.shown), output, re.S)
    ]
    assert not wrong, "\n".join(wrong)
