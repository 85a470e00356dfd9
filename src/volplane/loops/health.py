"""Health checks and metrics of a role over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from volplane.base import metrics
from volplane.web import BadAddress, Request, Response, serve

Check = Callable[[], Awaitable[tuple[int, str]]]  # a status and a message


@asynccontextmanager
async def health(endpoint: str, checks: Mapping[str, Check], metrics_path: str = "") -> AsyncIterator[int]:
    """Serve checks and metrics at `host:port`, or nothing if the endpoint is empty. Yields the port."""
    if not endpoint:
        yield 0
        return

    async def answer(request: Request) -> Response:
        if request.path == metrics_path:
            # In a thread: with many objects, computed gauges count for a long time.
            found = await asyncio.to_thread(metrics.prepare())
            return Response(headers=[("Content-Type", metrics.CONTENT_TYPE)], body=found)
        check = checks.get(request.path)
        status, text = await check() if check else (404, "404 page not found")
        return Response(
            status=status, headers=[("Content-Type", "text/plain; charset=utf-8")], body=text.encode()
        )

    host, colon, port = endpoint.rpartition(":")
    host = host.strip("[]")  # of an IPv6 address
    if not (colon and port.isascii() and port.isdecimal()):
        raise BadAddress(host, port, f"{endpoint!r} is not an address such as 127.0.0.1:8080 or :8080")
    server = await serve(answer, host=host, port=int(port))
    try:
        yield server.port
    finally:
        await server.close(1.0)


async def alive() -> tuple[int, str]:
    """A check that always succeeds: the process answers."""
    return 200, "ok"
