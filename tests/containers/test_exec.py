"""Commands inside a running container, with pipes and with a terminal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from volplane.node.containers.base import CannotExec, ContainerNotRunning

pytestmark = pytest.mark.root


async def everything(output: Any) -> bytes:
    text = b""
    while data := await output.read():
        text += data
    return text


async def test_a_command_sees_the_container_and_gives_its_code(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        spec = room.spec(
            "sleep", "1000", hostname="pod-0", env={"A": "b"}, workdir="/srv", user=1234, group=1
        )
        await runtime.start(spec)
        running = await runtime.exec(
            "one", ("sh", "-c", "hostname; echo $A; pwd; id -u; echo no >&2; exit 5")
        )
        assert await everything(running.stdout) == b"pod-0\nb\n/srv\n1234\n"
        assert running.stderr is not None
        assert await everything(running.stderr) == b"no\n"
        assert await running.wait() == 5
        await running.close()


async def test_what_goes_in_comes_out(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.spec())
        running = await runtime.exec("one", ("cat",), stdin=True)
        assert running.stdin is not None
        data = bytes(range(256)) * 8192  # more than the pipes hold

        async def feed() -> None:
            await running.stdin.write(data)
            running.stdin.close()

        async with asyncio.TaskGroup() as group:
            group.create_task(feed())
            text = group.create_task(everything(running.stdout))
        assert text.result() == data
        assert await running.wait() == 0
        await running.close()


async def test_a_terminal_is_the_containers_own(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.spec())
        running = await runtime.exec("one", ("sh",), tty=True, stdin=True)
        assert running.stdin is not None
        assert running.stderr is None
        running.resize(120, 40)
        await running.stdin.write(b"stty -echo; PS1=; tty; stty size; echo $TERM; exit 3\n")
        text = await everything(running.stdout)
        assert await running.wait() == 3
        assert b"/dev/pts/0\r\n40 120\r\nxterm\r\n" in text
        await running.close()


async def test_a_command_whose_caller_leaves_is_ended(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.spec())
        running = await runtime.exec("one", ("sleep", "1000"))
        reading = asyncio.create_task(running.stdout.read())
        await asyncio.sleep(0)
        await running.close()
        assert await reading == b""
        assert "sleep" not in (await room.run_in(runtime, "one", "ps", "-e", "-o", "args="))[1]


async def test_a_command_ends_with_its_container(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.spec())
        running = await runtime.exec("one", ("sleep", "1000"))
        await runtime.stop("one", 0)
        assert await running.wait() == 137
        await running.close()
        with pytest.raises(ContainerNotRunning):
            await runtime.exec("one", ("true",))


@pytest.mark.parametrize("tty", [False, True])
async def test_a_command_that_cannot_run_is_refused(room: Any, tty: bool) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.spec())
        with pytest.raises(CannotExec, match="executable file not found") as raised:
            await runtime.exec("one", ("no-such-program",), tty=tty)
        assert raised.value.code == 127
