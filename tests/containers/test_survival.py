"""Containers survive `kill -9` of node, launcher and shim as designed, are found again, and leave nothing."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from volplane.host.processes import start_time, wait_for_exit
from volplane.node.containers import process

pytestmark = pytest.mark.root

PARENT = """
import asyncio, sys
from volplane.host import Host
from volplane.node.containers.base import ContainerSpec
from volplane.node.containers.process import ProcessRuntime

async def main(directory, log):
    runtime = ProcessRuntime(directory, Host(threads=2))
    script = "echo started; trap 'echo bye; exit 9' TERM; while :; do sleep 0.05; done"
    for id in ("one", "two"):
        path = f"{log}/{id}/0.log"
        await runtime.start(ContainerSpec(id=id, command=("sh", "-c", script), hostname=id, log_path=path))
    print(runtime.launcher.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


def start_and_kill_parent(room: Any) -> int:
    """Start two containers from another process and kill it; return the pid of its launcher."""
    argv = [sys.executable, "-c", PARENT, str(room.containers), str(room.path / "logs")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        launcher = int(parent.stdout.readline())
        parent.kill()
    return launcher


async def wait_until_gone(pid: int) -> None:
    async with asyncio.timeout(10):
        await wait_for_exit(pid)


async def test_containers_outlive_the_node_and_are_adopted(room: Any) -> None:
    launcher = start_and_kill_parent(room)
    await wait_until_gone(launcher)
    async with room.runtime() as runtime:  # a second node process, which ends normally
        states = await runtime.states()
        assert [(s.id, s.running, s.spec.hostname) for s in states] == [
            ("one", True, "one"),
            ("two", True, "two"),
        ]
    async with room.temporary_runtime() as runtime:
        assert (await room.run_in(runtime, "two", "hostname")) == (0, "two\n")
        assert (await runtime.stop("one", 30)).exit_code == 9
        assert (await runtime.state("two")).running
    assert room.output("one") == ["started", "bye"]


async def test_what_ended_while_nobody_looked_is_known(room: Any) -> None:
    start_and_kill_parent(room)
    async with room.runtime() as runtime:
        pid = (await runtime.state("one")).pid
    os.kill(pid, signal.SIGTERM)
    await wait_until_gone(pid)
    async with room.temporary_runtime() as runtime:
        state = await runtime.wait("one")
        assert (state.running, state.exit_code, state.reason) == (False, 9, "Error")
        assert state.started_at <= state.finished_at


async def test_a_killed_launcher_is_replaced_and_nobody_notices(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.shell("trap 'exit 4' TERM; echo up; while :; do sleep 0.05; done"))
        await room.wait_for_output("up")
        launcher = runtime.launcher.pid
        os.kill(launcher, signal.SIGKILL)
        assert (await room.run_in(runtime, "one", "echo", "in")) == (0, "in\n")
        assert runtime.launcher.pid != launcher
        assert (await runtime.start(room.spec("sleep", "1000", id="two"))).running
        assert (await runtime.stop("one", 30)).exit_code == 4


async def test_a_container_does_not_outlive_its_supervisor(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        pid = (await runtime.start(room.spec("sleep", "1000"))).pid
        os.kill(int(supervisor(pid)), signal.SIGKILL)
        state = await runtime.wait("one")
        assert (state.exit_code, state.message) == (137, "its supervisor was killed")
        assert not start_time(pid)


def supervisor(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[1]


async def test_what_never_ran_is_cleared_away(room: Any) -> None:
    (room.containers / "half").mkdir()
    (room.containers / "half" / "container.json.tmp").write_text("{")
    async with room.temporary_runtime() as runtime:
        assert await runtime.states() == []
        assert not (room.containers / "half").exists()


async def test_a_start_whose_node_is_gone_never_happens(room: Any) -> None:
    async with room.runtime() as runtime:
        await runtime.launcher.prepare()
        ours, theirs = socket.socketpair()
        ours.close()  # as the kernel does when the node is killed
        directory = f"{room.containers}/one"
        request = {"op": "start", "directory": directory, "plain": True, "host_pid": False}
        given = process._write_memfd(msgspec.json.encode(room.shell("echo ran")))
        await runtime.launcher._send(msgspec.json.encode(request), [theirs.fileno(), given])
        theirs.close()
        os.close(given)
        launcher = runtime.launcher.pid
    await wait_until_gone(launcher)
    async with asyncio.timeout(20):
        while await asyncio.to_thread(children_titled, "volplane-shim one"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    async with room.temporary_runtime() as runtime:
        assert await runtime.states() == []
        assert (await runtime.start(room.shell("echo ran"))).running
        assert (await runtime.wait("one")).exit_code == 0
    assert room.output() == ["ran"]


def children_titled(title: str) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        with suppress(OSError):
            if entry.name.isdigit() and title in Path(entry.path, "cmdline").read_text():
                found.append(int(entry.name))
    return found


async def test_a_start_that_is_under_way_is_waited_for(room: Any) -> None:
    directory = room.containers / "one"
    directory.mkdir()
    shim = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(shim, fcntl.LOCK_EX)
    async with room.temporary_runtime() as runtime:
        looking = asyncio.create_task(runtime.states())
        await asyncio.sleep(0.05)
        assert not looking.done()
        os.close(shim)  # it gave up
        assert await looking == []


async def test_a_pid_of_somebody_else_is_not_ours(room: Any) -> None:
    async with room.runtime() as runtime:
        pid = (await runtime.start(room.spec("sleep", "1000"))).pid
        await runtime.stop("one", 0)
        await wait_until_gone(pid)
    file = room.containers / "one" / "container.json"
    text = file.read_text().replace(f'"pid": {pid},', f'"pid": {os.getpid()},')
    shim = text.split('"shim": ')[1].split(",")[0]
    file.write_text(text.replace(f'"shim": {shim},', f'"shim": {os.getpid()},'))
    (room.containers / "one" / "exit.json").unlink()
    async with room.temporary_runtime() as runtime:
        state = await runtime.state("one")
        assert (state.running, state.exit_code) == (False, 137)


async def test_nothing_is_left_on_the_machine(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.shell("sleep 1000 & exec sleep 1000"))
        pid = (await runtime.state("one")).pid
        shim, launcher = int(supervisor(pid)), runtime.launcher.pid
        await runtime.remove("one")
        assert start_time(pid) == start_time(shim) == 0
        assert os.listdir(room.containers) == ["launcher.log"]
        children = await asyncio.to_thread(children_of, launcher)
    for child in (launcher, *children):
        await wait_until_gone(child)


def children_of(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]
