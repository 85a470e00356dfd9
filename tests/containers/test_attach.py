"""Attach: clients receive a container's output and write to its input."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from volplane.node.containers.base import AttachRefused, ContainerNotRunning

pytestmark = pytest.mark.root

PATIENCE = 60.0


class AttachedClient:
    """Collects the output of an attached container, one text for each stream."""

    def __init__(self, attach: Any) -> None:
        self.attached = attach
        self.text = {"stdout": b"", "stderr": b""}
        self._output = attach.read_output()

    async def until(self, wanted: bytes, stream: str = "stdout") -> None:
        async with asyncio.timeout(PATIENCE):
            while wanted not in self.text[stream]:
                name, data = await anext(self._output)
                self.text[name] += data

    async def read_to_end(self) -> dict[str, bytes]:
        async with asyncio.timeout(PATIENCE), aclosing(self._output) as heard:
            async for name, data in heard:
                self.text[name] += data
        return self.text


@asynccontextmanager
async def attach(runtime: Any, *, stdin: bool = True) -> AsyncIterator[AttachedClient]:
    visit = await runtime.attach("one", stdin=stdin)
    try:
        yield AttachedClient(visit)
    finally:
        visit.close()


async def test_an_input_for_one_client_ends_with_it(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.spec("cat", stdin=True, stdin_once=True))
        data = b"".join(b"row %d\n" % n for n in range(50_000))  # more than all the buffers on the way hold
        async with attach(runtime) as client:

            async def speak() -> None:
                await client.attached.write(data)
                await client.attached.end_input()

            async with asyncio.TaskGroup() as group:
                group.create_task(speak())
                heard = group.create_task(client.read_to_end())
            assert heard.result() == {"stdout": data, "stderr": b""}
        state = await runtime.wait("one")
        assert (state.exit_code, state.reason) == (0, "Completed")
        assert len(room.output()) == 50_000


async def test_an_input_for_one_client_ends_when_it_just_leaves(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.shell("cat; echo over", stdin=True, stdin_once=True))
        async with attach(runtime, stdin=False) as client:  # a client without input may disconnect
            client.attached.close()
        async with attach(runtime) as client:
            await client.attached.write(b"one\n")
            await client.until(b"one\n")
        await runtime.wait("one")
        assert room.output() == ["one", "over"]


async def test_what_was_said_before_the_one_client_came_waits_for_it(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.shell("echo early; cat", stdin=True, stdin_once=True))
        await room.wait_for_output("early")
        async with attach(runtime) as client:
            await client.until(b"early\n")
        await runtime.wait("one")
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.shell("echo early; read line; echo $line", stdin=True, id="two"))
        await room.wait_for_output("early", "two")
        visit = await runtime.attach("two", stdin=True)  # without stdinOnce no client gets earlier output
        await visit.write(b"late\n")
        assert (await AttachedClient(visit).read_to_end())["stdout"] == b"late\n"
        visit.close()


async def test_an_input_for_all_stays_open_for_the_next(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.shell("while read line; do echo got $line; echo why >&2; done", stdin=True))
        for word in (b"first", b"second"):
            async with attach(runtime) as client:
                await client.attached.write(word + b"\n")
                await client.until(b"got " + word)
                await client.until(b"why", "stderr")
                await client.attached.end_input()
        assert (await runtime.state("one")).running
        assert room.output() == ["got first", "got second"]


async def test_all_who_are_attached_hear_the_same(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.spec("cat", stdin=True))
        async with attach(runtime) as first, attach(runtime, stdin=False) as second:
            # Wait until both are attached: output that follows the second one's input comes after that.
            await second.attached.write(b"hello\n")
            await second.until(b"hello\n")
            await first.attached.write(b"both\n")
            await first.until(b"both\n")
            await second.until(b"both\n")


async def test_a_command_that_does_not_read_speaks_all_the_same(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        script = "read first; echo $first; seq 1 30000; read rest; sleep 1000"
        await runtime.start(room.shell(script, stdin=True))
        async with attach(runtime) as client:
            speaking = asyncio.create_task(client.attached.write(b"go\n" + b"x" * (8 << 20)))
            await client.until(b"30000\n")
            assert not speaking.done()  # the command does not read it
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)


async def test_a_terminal_of_its_own(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        script = "tty; echo $TERM; read line; echo said $line; stty size; exit 3"
        await runtime.start(room.shell(script, stdin=True, tty=True))
        await room.wait_for_output("xterm")
        assert room.output() == ["/dev/pts/0", "xterm"]
        async with attach(runtime) as client:
            await client.attached.resize(120, 40)
            await client.attached.write(b"words\n")
            text = (await client.read_to_end())["stdout"]
        assert text == b"words\r\nsaid words\r\n40 120\r\n"
        assert (await runtime.wait("one")).exit_code == 3


async def test_a_terminal_sends_signals(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(
            room.shell("trap 'exit 5' INT; echo ready; while :; do sleep 0.1; done", tty=True, stdin=True)
        )
        await room.wait_for_output("ready")
        async with attach(runtime) as client:
            await client.attached.write(b"\x03")
            await client.read_to_end()
        assert (await runtime.wait("one")).exit_code == 5


async def test_the_next_life_of_the_node_can_attach(room: Any) -> None:
    async with room.runtime() as runtime:
        await runtime.start(room.spec("cat", stdin=True, stdin_once=True))
    async with room.temporary_runtime() as runtime:
        async with attach(runtime) as client:
            await client.attached.write(b"still here\n")
            await client.attached.end_input()
            assert (await client.read_to_end())["stdout"] == b"still here\n"
        await runtime.wait("one")


async def test_who_cannot_be_attached_to(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.spec("sleep", "1000"))
        with pytest.raises(AttachRefused, match="without stdin and without a terminal"):
            await runtime.attach("one")
        await runtime.stop("one", 0)
        with pytest.raises(ContainerNotRunning):
            await runtime.attach("one")


async def test_without_a_program_a_terminal_changes_nothing(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        state = await runtime.start(room.spec("/no/such/program", tty=True, stdin=True))
        assert (state.running, state.exit_code) == (False, 127)
