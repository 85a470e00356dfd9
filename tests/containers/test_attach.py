"""A container's own streams: who attaches hears what it says, and speaks to it where it listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from volplane.node.containers.base import AttachRefused, ContainerNotRunning

pytestmark = pytest.mark.root

PATIENCE = 60.0


class Ear:
    """What an attachment hears, as one text for each stream."""

    def __init__(self, attached: Any) -> None:
        self.attached = attached
        self.text = {"stdout": b"", "stderr": b""}
        self._heard = attached.read_output()

    async def until(self, wanted: bytes, stream: str = "stdout") -> None:
        async with asyncio.timeout(PATIENCE):
            while wanted not in self.text[stream]:
                name, data = await anext(self._heard)
                self.text[name] += data

    async def ended(self) -> dict[str, bytes]:
        async with asyncio.timeout(PATIENCE), aclosing(self._heard) as heard:
            async for name, data in heard:
                self.text[name] += data
        return self.text


@asynccontextmanager
async def attached(runtime: Any, *, stdin: bool = True) -> AsyncIterator[Ear]:
    visit = await runtime.attach("one", stdin=stdin)
    try:
        yield Ear(visit)
    finally:
        visit.close()


async def test_an_input_for_one_client_ends_with_it(room: Any) -> None:
    async with room.emptied() as runtime:
        await runtime.start(room.spec("cat", stdin=True, stdin_once=True))
        data = b"".join(b"row %d\n" % n for n in range(50_000))  # more than all the buffers on the way hold
        async with attached(runtime) as ear:

            async def speak() -> None:
                await ear.attached.write(data)
                await ear.attached.end_input()

            async with asyncio.TaskGroup() as group:
                group.create_task(speak())
                heard = group.create_task(ear.ended())
            assert heard.result() == {"stdout": data, "stderr": b""}
        state = await runtime.wait("one")
        assert (state.exit_code, state.reason) == (0, "Completed")
        assert len(room.output()) == 50_000


async def test_an_input_for_one_client_ends_when_it_just_leaves(room: Any) -> None:
    async with room.emptied() as runtime:
        await runtime.start(room.shell("cat; echo over", stdin=True, stdin_once=True))
        async with attached(runtime, stdin=False) as ear:  # who only listens may come and go
            ear.attached.close()
        async with attached(runtime) as ear:
            await ear.attached.write(b"one\n")
            await ear.until(b"one\n")
        await runtime.wait("one")
        assert room.output() == ["one", "over"]


async def test_what_was_said_before_the_one_client_came_waits_for_it(room: Any) -> None:
    async with room.emptied() as runtime:
        await runtime.start(room.shell("echo early; cat", stdin=True, stdin_once=True))
        await room.said("early")
        async with attached(runtime) as ear:
            await ear.until(b"early\n")
        await runtime.wait("one")
    async with room.emptied() as runtime:
        await runtime.start(room.shell("echo early; read line; echo $line", stdin=True, id="two"))
        await room.said("early", "two")
        visit = await runtime.attach("two", stdin=True)  # of many clients none was meant to hear it
        await visit.write(b"late\n")
        assert (await Ear(visit).ended())["stdout"] == b"late\n"
        visit.close()


async def test_an_input_for_all_stays_open_for_the_next(room: Any) -> None:
    async with room.emptied() as runtime:
        await runtime.start(room.shell("while read line; do echo got $line; echo why >&2; done", stdin=True))
        for word in (b"first", b"second"):
            async with attached(runtime) as ear:
                await ear.attached.write(word + b"\n")
                await ear.until(b"got " + word)
                await ear.until(b"why", "stderr")
                await ear.attached.end_input()
        assert (await runtime.state("one")).running
        assert room.output() == ["got first", "got second"]


async def test_all_who_are_attached_hear_the_same(room: Any) -> None:
    async with room.emptied() as runtime:
        await runtime.start(room.spec("cat", stdin=True))
        async with attached(runtime) as first, attached(runtime, stdin=False) as second:
            # Heard by both only once both are in: what the second one says itself comes after it came in.
            await second.attached.write(b"hello\n")
            await second.until(b"hello\n")
            await first.attached.write(b"both\n")
            await first.until(b"both\n")
            await second.until(b"both\n")


async def test_a_command_that_does_not_read_speaks_all_the_same(room: Any) -> None:
    async with room.emptied() as runtime:
        script = "read first; echo $first; seq 1 30000; read rest; sleep 1000"
        await runtime.start(room.shell(script, stdin=True))
        async with attached(runtime) as ear:
            speaking = asyncio.create_task(ear.attached.write(b"go\n" + b"x" * (8 << 20)))
            await ear.until(b"30000\n")
            assert not speaking.done()  # nobody takes it
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)


async def test_a_terminal_of_its_own(room: Any) -> None:
    async with room.emptied() as runtime:
        script = "tty; echo $TERM; read line; echo said $line; stty size; exit 3"
        await runtime.start(room.shell(script, stdin=True, tty=True))
        await room.said("xterm")
        assert room.output() == ["/dev/pts/0", "xterm"]
        async with attached(runtime) as ear:
            await ear.attached.resize(120, 40)
            await ear.attached.write(b"words\n")
            text = (await ear.ended())["stdout"]
        assert text == b"words\r\nsaid words\r\n40 120\r\n"
        assert (await runtime.wait("one")).exit_code == 3


async def test_a_terminal_sends_signals(room: Any) -> None:
    async with room.emptied() as runtime:
        await runtime.start(
            room.shell("trap 'exit 5' INT; echo ready; while :; do sleep 0.1; done", tty=True, stdin=True)
        )
        await room.said("ready")
        async with attached(runtime) as ear:
            await ear.attached.write(b"\x03")
            await ear.ended()
        assert (await runtime.wait("one")).exit_code == 5


async def test_the_next_life_of_the_node_can_attach(room: Any) -> None:
    async with room.runtime() as runtime:
        await runtime.start(room.spec("cat", stdin=True, stdin_once=True))
    async with room.emptied() as runtime:
        async with attached(runtime) as ear:
            await ear.attached.write(b"still here\n")
            await ear.attached.end_input()
            assert (await ear.ended())["stdout"] == b"still here\n"
        await runtime.wait("one")


async def test_who_cannot_be_attached_to(room: Any) -> None:
    async with room.emptied() as runtime:
        await runtime.start(room.spec("sleep", "1000"))
        with pytest.raises(AttachRefused, match="without stdin and without a terminal"):
            await runtime.attach("one")
        await runtime.stop("one", 0)
        with pytest.raises(ContainerNotRunning):
            await runtime.attach("one")


async def test_without_a_program_a_terminal_changes_nothing(room: Any) -> None:
    async with room.emptied() as runtime:
        state = await runtime.start(room.spec("/no/such/program", tty=True, stdin=True))
        assert (state.running, state.exit_code) == (False, 127)
