"""The format of log lines, and their sink."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from volplane.base import log


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root, own = logging.getLogger(), logging.getLogger("volplane")
    handlers, levels = list(root.handlers), (root.level, own.level)
    out = io.StringIO()
    log.setup("info", out)
    yield out
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])


def test_a_line_tells_time_level_component_text_and_values(stream: io.StringIO) -> None:
    logging.getLogger("volplane.sidecars.attacher.controller").info(
        "attached %s", "v1", extra={"node": "worker-1"}
    )
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z INFO  attacher: attached v1 node=worker-1\n",
        stream.getvalue(),
    )


@pytest.mark.parametrize(
    ("logger", "component"),
    [
        ("volplane.scheduler.plan", "scheduler"),
        ("volplane.controllers.binder", "binder"),
        ("volplane.drivers.ebs.node", "ebs"),
        ("asyncio", "asyncio"),
    ],
)
def test_the_component_is_the_room(logger: str, component: str) -> None:
    assert log.component(logger) == component


def test_values_with_spaces_are_quoted(stream: io.StringIO) -> None:
    logging.getLogger("volplane.node").warning("x", extra={"why": "not yet"})
    assert stream.getvalue().endswith("node: x why='not yet'\n")


def test_below_the_level_nothing_is_written_and_libraries_only_warn(stream: io.StringIO) -> None:
    logging.getLogger("volplane.node").debug("quiet")
    logging.getLogger("some.library").info("quiet")
    assert stream.getvalue() == ""


def test_setup_again_replaces_the_handler(stream: io.StringIO) -> None:
    second = io.StringIO()
    log.setup("info", second)
    logging.getLogger("volplane.node").info("once")
    assert stream.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_an_exception_comes_with_its_traceback(stream: io.StringIO) -> None:
    try:
        raise OSError("disk on fire")
    except OSError:
        logging.getLogger("volplane.node").exception("failed")
    assert "OSError: disk on fire" in stream.getvalue()


async def test_a_task_with_a_sink_keeps_its_lines_to_itself(stream: io.StringIO) -> None:
    own: list[str] = []

    async def container() -> None:
        log.sink.set(own.append)
        async with asyncio.TaskGroup() as group:
            group.create_task(below())

    async def below() -> None:
        logging.getLogger("volplane.csi.client").info("mine")

    await asyncio.create_task(container())
    logging.getLogger("volplane.node").info("theirs")
    assert [line.split(": ", 1)[1] for line in own] == ["mine"]
    assert "mine" not in stream.getvalue()
    assert "theirs" in stream.getvalue()


LOUD = """
import logging, os, sys
from volplane.base import log
log.MAX_SIZE, log.MAX_FILES = 1000, 3
log.time.strftime = lambda form, when, count=iter(range(10_000)): form.replace(
    "%Y%m%d-%H%M%S", f"20261115-{next(count):06}"
)
log.setup()
for number in range(200):
    logging.getLogger("volplane.node").info("line %d", number)
os.write(2, b"the interpreter's own last words\\n")
"""


def test_a_role_s_log_is_rotated_and_takes_what_the_interpreter_writes(tmp_path: Path) -> None:
    file = tmp_path / "node-1.log"
    with file.open("ab") as out:
        command = [sys.executable, "-c", LOUD]
        env = {**os.environ, log.FILE: str(file)}
        subprocess.run(command, stdout=out, stderr=out, env=env, check=True)
    there = sorted(tmp_path.iterdir())
    assert len(there) == 3
    assert there[0] == file
    assert all(each.stat().st_size < 1200 for each in there)
    lines = "".join(each.read_text() for each in (*there[1:], file)).splitlines()
    assert lines[-1] == "the interpreter's own last words"
    numbers = [int(line.rsplit(" ", 1)[1]) for line in lines[:-1]]
    assert numbers == list(range(numbers[0], 200))


def test_a_log_that_is_not_large_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "launcher.log"
    assert not log.rotate(str(file))
    file.write_text("short")
    assert not log.rotate(str(file))
    with file.open("wb") as large:
        large.truncate(log.MAX_SIZE)
    assert log.rotate(str(file))
    assert not file.exists()
