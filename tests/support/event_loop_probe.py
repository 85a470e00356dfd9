"""A server with its own event loop, in a thread, that is measured callback by callback.

What counts is the CPU time that the loop's thread spends in one callback: a busy machine makes it wait, but
does not make it work. The client is plain and blocking, and runs in the thread of the test, so that none of
its work is taken for the server's.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from volplane import apiserver
from volplane.apiserver.server import RunningApiServer
from volplane.store import Store
from volplane.web import tls

PATIENCE = 120.0


class Probe:
    """The longest callback since the last `take`, and its description."""

    def __init__(self) -> None:
        self.longest, self.culprit = 0.0, ""

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure the callbacks of this thread's event loop."""
        run, here = asyncio.Handle._run, threading.get_ident()

        def run_measured(handle: asyncio.Handle) -> None:
            if threading.get_ident() != here:
                return run(handle)
            began = time.thread_time()
            run(handle)
            if (spent := time.thread_time() - began) > self.longest:
                self.longest, self.culprit = spent, repr(handle)
            return None

        asyncio.Handle._run = run_measured  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            asyncio.Handle._run = run  # type: ignore[method-assign]

    def take(self) -> tuple[float, str]:
        taken = self.longest, self.culprit
        self.longest, self.culprit = 0.0, ""
        return taken


class Answer:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class MeasuredServer:
    """The server, and a client for it."""

    def __init__(self, directory: Path, open_store: Callable[[], Awaitable[Store]]) -> None:
        self.probe = Probe()
        self._directory, self._open = directory, open_store
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self.server: RunningApiServer | None = None
        self._connection: http.client.HTTPSConnection | None = None
        self._thread = threading.Thread(target=self._run, name="measured server")

    def __enter__(self) -> MeasuredServer:
        self._thread.start()
        assert self._started.wait(PATIENCE)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with self.probe.measure(), asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            store = await self._open()
            self.server = await apiserver.run(
                apiserver.ApiServerOptions(data_dir=str(self._directory)), store
            )
        except BaseException as error:
            self._failure = error
            return
        finally:
            self._started.set()
        await self._stop.wait()
        await self.server.close(0)
        await store.close()

    def connect(self) -> http.client.HTTPSConnection:
        assert self.server is not None
        authority = self.server.authority
        admin = authority.client("client-kubernetes-admin", "kubernetes-admin", ("system:masters",))
        context: ssl.SSLContext = tls.client_context(
            str(authority.pair.cert_path), str(admin.cert_path), str(admin.key_path)
        )
        where = urlsplit(self.server.url)
        return http.client.HTTPSConnection(
            where.hostname or "", where.port, timeout=PATIENCE, context=context
        )

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        type: str = "application/json",
        **headers: str,
    ) -> Answer:
        """Send one request; a body that is not bytes is encoded as JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if data is not None:
            sent.setdefault("content-type", type)
        return self.send(method, path, data, sent)

    def send(self, method: str, path: str, data: bytes | None, sent: Mapping[str, str]) -> Answer:
        """Send raw bytes over the kept connection; reconnect if the server has closed it."""
        for attempt in (1, 2):
            if self._connection is None:
                self._connection = self.connect()
            try:
                self._connection.request(method, path, body=data, headers=dict(sent))
                got = self._connection.getresponse()
                answer = Answer(got.status, dict(got.headers), got.read())
                if got.will_close:
                    self._forget()
                return answer
            except (http.client.HTTPException, OSError):
                self._forget()
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def _forget(self) -> None:
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
        self._connection = None


def resident() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
