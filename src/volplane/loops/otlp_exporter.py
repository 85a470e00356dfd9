"""Sends spans to an OpenTelemetry collector: OTLP over HTTP, as JSON, configured by the standard variables.

Spans wait in a bounded queue and are sent in batches. A collector that does not answer is tried again; it
never delays a step, and when the queue is full the oldest spans are dropped.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from msgspec import Struct

from volplane.base.otlp import encode_spans, read_pairs, resource_attributes
from volplane.base.tasks import background
from volplane.base.trace import Trace, decode_span
from volplane.web.client import HttpClient, HttpError
from volplane.web.tls import client_context

log = logging.getLogger(__name__)

QUEUE = 8192  # spans
BATCH = 512
DELAY = 1.0  # seconds between two batches
TIMEOUT = 10.0
LAST_TIMEOUT = 2.0  # at the end of the process
RETRYABLE = frozenset({429, 502, 503, 504})
PATH = "/v1/traces"
PROTOCOLS = ("", "http/json", "http/protobuf")  # a receiver of the second accepts the first


class ExportOptions(Struct, frozen=True):
    """Where and how to export. `url` is complete, with its path."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    timeout: float = TIMEOUT
    delay: float = DELAY
    compress: bool = False
    certificate: str = ""  # the CA of the collector


def read_export_options(endpoint: str = "", env: Mapping[str, str] = os.environ) -> ExportOptions | None:
    """The options of --otlp-endpoint and the standard variables; None: export nothing. Raises ValueError."""
    if env.get("OTEL_SDK_DISABLED", "").lower() == "true" or env.get("OTEL_TRACES_EXPORTER") == "none":
        return None

    def read(name: str) -> str:
        return env.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or env.get(f"OTEL_EXPORTER_OTLP_{name}", "")

    base = endpoint or env.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    url = "" if endpoint else env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
    url = url or (base.rstrip("/") + PATH if base else "")
    if not url:
        return None
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ValueError(
            f"--otlp-endpoint: {endpoint or url!r} is not an HTTP address like http://127.0.0.1:4318"
        )
    if (protocol := read("PROTOCOL")) not in PROTOCOLS:
        raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL: {protocol} is not supported; use http/json")
    try:
        headers = tuple(read_pairs(read("HEADERS")))
        timeout = float(read("TIMEOUT") or TIMEOUT * 1000) / 1000
        delay = float(env.get("OTEL_BSP_SCHEDULE_DELAY") or DELAY * 1000) / 1000
    except ValueError as error:
        raise ValueError(f"OTEL_EXPORTER_OTLP_*: {error}") from error
    return ExportOptions(url, headers, timeout, delay, read("COMPRESSION") == "gzip", read("CERTIFICATE"))


class OtlpExporter:
    """Queues spans and sends them. `OtlpExporter.add` is a sink of a trace."""

    def __init__(self, options: ExportOptions, role: str) -> None:
        self._options = options
        self._resource = resource_attributes(role)
        url = urlsplit(options.url)
        context = client_context(options.certificate) if options.certificate else None
        headers = [*options.headers, ("Content-Type", "application/json"), ("User-Agent", "volplane")]
        if options.compress:
            headers.append(("Content-Encoding", "gzip"))
        self._http = HttpClient(f"{url.scheme}://{url.netloc}", ssl=context, headers=headers)
        self._path = url.path + (f"?{url.query}" if url.query else "")
        self._queue: deque[bytes] = deque(maxlen=QUEUE)
        self._reported = ""  # the last problem, which is logged once

    def add(self, span: bytes) -> None:
        self._queue.append(span)

    async def run(self) -> None:
        """Send batches until cancelled."""
        while True:
            await asyncio.sleep(self._options.delay)
            await self.flush(self._options.timeout)

    async def flush(self, timeout: float) -> None:
        """Send what is queued, until the collector does not answer."""
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            if not await self._send(batch, timeout):
                self._queue.extendleft(reversed(batch))
                return

    async def close(self) -> None:
        await self.flush(LAST_TIMEOUT)
        await self._http.close()

    async def _send(self, batch: list[bytes], timeout: float) -> bool:
        """Whether the batch is done with: accepted, or refused for good."""
        spans = [span for span in map(decode_span, batch) if span.end and span.traces]
        if not spans:
            return True
        body = encode_spans(spans, time.time_ns() - time.monotonic_ns(), self._resource)
        if self._options.compress:
            body = gzip.compress(body, 1)
        try:
            answer = await self._http.request("POST", self._path, body=body, timeout=timeout)
        except (OSError, HttpError, TimeoutError) as error:
            self._report(f"does not answer: {error or type(error).__name__}; trying again")
            return False
        if answer.status in RETRYABLE:
            self._report(f"answers {answer.status}; trying again")
            return False
        if answer.status >= 400:
            self._report(f"refuses spans with {answer.status}: {answer.body[:200].decode(errors='replace')}")
        else:
            self._reported = ""
        return True

    def _report(self, problem: str) -> None:
        if problem != self._reported:
            log.warning("the collector at %s %s", self._options.url, problem)
            self._reported = problem


@asynccontextmanager
async def export_spans(trace: Trace, role: str, options: ExportOptions) -> AsyncIterator[None]:
    """Export the spans of a trace as long as the context lasts."""
    exporter = OtlpExporter(options, role)
    trace.sinks.append(exporter.add)
    try:
        async with background(exporter.run()):
            yield
    finally:
        trace.sinks.remove(exporter.add)
        await exporter.close()
