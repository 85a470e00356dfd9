"""Health checks and metrics of a role over HTTP."""

from __future__ import annotations

import asyncio
import threading

from volplane.base import metrics
from volplane.base.metrics import Counts
from volplane.loops.health import alive, health

counted = metrics.computed_gauge("test_health_counted", "Counted for this test", ("label",))


async def get(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_computed_gauges_are_copied_on_the_event_loop_and_counted_in_a_thread() -> None:
    threads: list[int] = []

    def copy() -> int:
        threads.append(threading.get_ident())
        return 7

    def count(number: int) -> Counts:
        threads.append(threading.get_ident())
        return {("x",): number}

    async with health("127.0.0.1:0", {"/healthz": alive}, "/metrics") as port:
        with counted.counting(copy, count):
            assert 'test_health_counted{label="x"} 7.0' in await get(port, "/metrics")
        assert (await get(port, "/healthz")).endswith("ok")
        assert "404 page not found" in await get(port, "/other")
    on_loop, in_thread = threads
    assert on_loop == threading.get_ident() != in_thread
