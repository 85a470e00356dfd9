"""Built-in images as coroutines: they log, fail, stop and restart like any container."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from volplane.api.core import Container
from volplane.base import log
from volplane.host import NodePaths
from volplane.node.containers.base import (
    ContainerNotRunning,
    ContainerSpec,
    ExecRefused,
    Mount,
    NoSuchContainer,
    StartFailed,
)
from volplane.node.containers.task import TaskContext, TaskImage, TaskRuntime
from volplane.node.pods.runtimes import PROCESS, Runtimes

LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z stderr F (.*)$")


@pytest.fixture
def process_log() -> Iterator[StringIO]:
    stream, root = StringIO(), logging.getLogger()
    before, level, own = list(root.handlers), root.level, logging.getLogger("volplane").level
    log.setup("info", stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)
    logging.getLogger("volplane").setLevel(own)


def runtime(image: TaskImage) -> TaskRuntime:
    return TaskRuntime({"image": image}, NodePaths("/d/n/1"))


def spec(path: Path | None = None, id: str = "one", **more: object) -> ContainerSpec:
    log_path = str(path / "ns_pod" / f"{id}.log") if path else ""
    return ContainerSpec(id=id, name="attacher", image="image", log_path=log_path, **more)  # type: ignore[arg-type]


def test_a_command_of_its_own_takes_the_place_of_a_built_in_image() -> None:
    tasks = runtime(until_stopped)
    runtimes = Runtimes(tasks, tasks)
    assert runtimes.is_builtin(Container(name="c", image="image", args=("--v=5",)))
    assert runtimes.scheme(Container(name="c", image="image", command=("/bin/csi-attacher",))) == PROCESS
    assert not runtimes.is_builtin(Container(name="c", image="another"))


async def until_stopped(context: TaskContext) -> None:
    await context.stop.wait()


async def forever(context: TaskContext) -> None:
    await asyncio.Event().wait()


async def nested_logger(context: TaskContext) -> None:
    async def deeper() -> None:
        logging.getLogger("volplane.sidecars.attacher.controller").info("two\nlines")

    async with asyncio.TaskGroup() as group:
        group.create_task(deeper())


async def test_what_a_task_logs_is_in_its_own_log_and_nowhere_else(
    tmp_path: Path, process_log: StringIO
) -> None:
    tasks = runtime(nested_logger)
    assert (await tasks.start(spec(tmp_path))).running
    state = await tasks.wait("one")
    assert (state.exit_code, state.reason, state.running) == (0, "Completed", False)
    lines = (tmp_path / "ns_pod" / "one.log").read_text().splitlines()
    texts = [match[1] for line in lines if (match := LINE.match(line))]
    assert texts[0].endswith("INFO  attacher: two")
    assert texts[1] == "lines"
    assert process_log.getvalue() == ""
    logging.getLogger("volplane.node").info("mine")
    assert "mine" in process_log.getvalue()


async def test_a_crash_is_exit_code_one_with_its_traceback_in_the_log(tmp_path: Path) -> None:
    async def crash(context: TaskContext) -> None:
        raise ValueError("no such zone")

    tasks = runtime(crash)
    await tasks.start(spec(tmp_path))
    state = await tasks.wait("one")
    assert (state.exit_code, state.reason, state.message) == (1, "Error", "ValueError: no such zone")
    text = (tmp_path / "ns_pod" / "one.log").read_text()
    assert "Traceback" in text
    assert "no such zone" in text


@pytest.mark.parametrize(("given", "code"), [(None, 0), (3, 3), ("bad flag", 1)])
async def test_a_task_may_leave_by_exiting(given: object, code: int, tmp_path: Path) -> None:
    async def leave(context: TaskContext) -> None:
        raise SystemExit(given)

    tasks = runtime(leave)
    await tasks.start(spec(tmp_path))
    assert (await tasks.wait("one")).exit_code == code


@pytest.mark.virtual
async def test_a_task_that_heeds_the_request_ends_well() -> None:
    tasks = runtime(until_stopped)
    await tasks.start(spec())
    assert (await tasks.stop("one", 30)).exit_code == 0


@pytest.mark.virtual
async def test_a_task_that_does_not_is_cancelled_after_the_grace() -> None:
    loop = asyncio.get_running_loop()
    tasks = runtime(forever)
    await tasks.start(spec())
    began = loop.time()
    state = await tasks.stop("one", 30)
    assert (state.exit_code, state.running) == (137, False)
    assert loop.time() - began == pytest.approx(30)


@pytest.mark.virtual
async def test_a_task_that_swallows_its_cancellation_is_cancelled_again() -> None:
    async def deaf(context: TaskContext) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    tasks = runtime(deaf)
    await tasks.start(spec())
    assert not (await tasks.stop("one", 1)).running


async def test_a_task_starts_again_as_a_new_container(tmp_path: Path) -> None:
    tasks = runtime(until_stopped)
    await tasks.start(spec(tmp_path))
    assert await tasks.start(spec(tmp_path)) == await tasks.state("one")
    await tasks.stop("one", 1)
    again = await tasks.start(spec(tmp_path, "two", attempt=1))
    assert again.running
    assert [s.id for s in await tasks.states()] == ["one", "two"]
    await tasks.remove("one")
    await tasks.remove("one")
    await tasks.close()
    assert [(s.id, s.running) for s in await tasks.states()] == [("two", False)]


async def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    tasks = runtime(until_stopped)
    with pytest.raises(StartFailed, match='"nginx" is not built in'):
        await tasks.start(ContainerSpec(id="x", image="nginx"))
    with pytest.raises(NoSuchContainer):
        await tasks.wait("x")
    await tasks.start(spec())
    with pytest.raises(ExecRefused, match="built into the node"):
        await tasks.exec("one", ("ls",))
    await tasks.stop("one", 1)
    with pytest.raises(ContainerNotRunning):
        await tasks.exec("one", ("ls",))


def test_paths_of_a_task_lead_through_its_mounts() -> None:
    mounts = (Mount("/d/n/1/plugins/ebs", "/csi"), Mount("/d/n/1", "/var/lib/kubelet", propagation="rshared"))
    context = TaskContext(ContainerSpec(id="x", mounts=mounts), NodePaths("/d/n/1"), asyncio.Event())
    assert context.path("/csi/csi.sock") == "/d/n/1/plugins/ebs/csi.sock"
    assert context.path("/csi") == "/d/n/1/plugins/ebs"
    assert context.path("/var/lib/kubelet/pods/x") == "/d/n/1/pods/x"
    for elsewhere in ("/dev/xvdba", "/csi2", "csi/csi.sock", "dns:///127.0.0.1:80"):
        with pytest.raises(SystemExit, match="not below a volume mount"):
            context.path(elsewhere)
