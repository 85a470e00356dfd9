"""Idle time is skipped, real work is not."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from volplane.base.virtual_time_loop import VirtualLoop

pytestmark = pytest.mark.virtual


async def test_a_day_of_sleep_takes_no_time() -> None:
    loop = asyncio.get_running_loop()
    before = loop.time()
    await asyncio.sleep(86_400 * 3)
    assert loop.time() - before == pytest.approx(86_400 * 3)


async def test_timers_fire_in_the_order_of_their_deadlines() -> None:
    order: list[str] = []

    async def later(seconds: float, name: str) -> None:
        await asyncio.sleep(seconds)
        order.append(name)

    async with asyncio.TaskGroup() as group:
        for seconds, name in ((300, "c"), (0.001, "a"), (20, "b"), (1e6, "d")):
            group.create_task(later(seconds, name))
    assert order == ["a", "b", "c", "d"]


async def test_a_timeout_fires_on_virtual_time() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await asyncio.Event().wait()


async def test_work_in_a_thread_is_waited_for_while_the_clock_stands_still() -> None:
    loop = asyncio.get_running_loop()
    before = loop.time()
    async with asyncio.timeout(0.001):  # far less than the thread takes
        await loop.run_in_executor(None, time.sleep, 0.05)
    assert loop.time() == before


async def test_a_thread_of_ones_own_holds_the_clock_when_it_is_announced() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    done = asyncio.Event()

    def work() -> None:
        time.sleep(0.05)
        loop.call_soon_threadsafe(done.set)

    thread = threading.Thread(target=work)
    with loop.real_work():
        thread.start()
        async with asyncio.timeout(0.001):
            await done.wait()
    thread.join()


async def test_bytes_on_a_socket_arrive_before_the_deadline_passes() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(0.5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello\n")
            assert await reader.readline() == b"hello\n"
        writer.close()
        await writer.wait_closed()
