"""Sends spans to an OpenTelemetry collector: OTLP over HTTP, as JSON, configured by the standard variables.

Spans wait in a bounded queue and are sent in batches. A collector that does not answer is tried again; it
never delays a step. As in OpenTelemetry's SDKs, a full queue takes no more spans until some are sent; how
many were dropped is logged, and counted by the metrics that the semantic conventions have for an SDK.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import math
import os
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from volplane.base import metrics
from volplane.base.otlp import encode_spans, read_pairs, resource_attributes
from volplane.base.span_search import shift
from volplane.base.span_store import WallClock
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
GENERAL, TRACES = "OTEL_EXPORTER_OTLP", "OTEL_EXPORTER_OTLP_TRACES"  # of variables; the second come first
QUEUE_FULL, NOT_SENT = "queue_full", "timeout"  # values of error_type
PROTOCOLS = ("", "http/json", "http/protobuf")  # a receiver of the second accepts the first

_processed = metrics.counter(
    "otel_sdk_processor_span_processed_total",
    "Spans that were handed to the OTLP exporter, or dropped (error_type).",
    ("error_type",),
)
_exported = metrics.counter(
    "otel_sdk_exporter_span_exported_total",
    "Spans that a collector accepted, or that were not delivered (error_type).",
    ("error_type",),
)


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
    if env.get("OTEL_SDK_DISABLED", "").lower() == "true" or not _is_exporter_otlp(env):
        return None

    def read(name: str) -> str:
        return env.get(f"{TRACES}_{name}") or env.get(f"{GENERAL}_{name}", "")

    source, url = _read_url(endpoint, env)
    if not url:
        return None
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ValueError(f"{source}: {endpoint or url!r} is not an HTTP address like http://127.0.0.1:4318")
    if (protocol := read("PROTOCOL")) not in PROTOCOLS:
        raise ValueError(f"{GENERAL}_PROTOCOL: {protocol} is not supported; use http/json")
    if (compression := read("COMPRESSION")) not in ("", "none", "gzip"):
        raise ValueError(f"{GENERAL}_COMPRESSION: {compression} is not supported; use gzip or none")
    if (certificate := read("CERTIFICATE")) and not Path(certificate).is_file():
        raise ValueError(f"{GENERAL}_CERTIFICATE: there is no file {certificate}")
    try:
        resource_attributes("", env)
    except ValueError as error:
        raise ValueError(f"OTEL_RESOURCE_ATTRIBUTES: {error}") from error
    try:
        headers = tuple(read_pairs(read("HEADERS")))
    except ValueError as error:
        raise ValueError(f"{GENERAL}_HEADERS: {error}") from error
    timeout = _read_milliseconds(f"{GENERAL}_TIMEOUT", read("TIMEOUT"), TIMEOUT)
    delay = _read_milliseconds("OTEL_BSP_SCHEDULE_DELAY", env.get("OTEL_BSP_SCHEDULE_DELAY", ""), DELAY)
    return ExportOptions(url, headers, timeout, delay, compression == "gzip", certificate)


def _is_exporter_otlp(env: Mapping[str, str]) -> bool:
    """OTEL_TRACES_EXPORTER is a list of exporters; this is the only one there is."""
    chosen = [name.strip() for name in env.get("OTEL_TRACES_EXPORTER", "").split(",") if name.strip()]
    return not chosen or "otlp" in chosen


def _read_url(endpoint: str, env: Mapping[str, str]) -> tuple[str, str]:
    """The complete address, "" if none is given, and where it was given."""
    if not endpoint and (own := env.get(f"{TRACES}_ENDPOINT", "")):
        return f"{TRACES}_ENDPOINT", own
    source, base = "--otlp-endpoint", endpoint
    if not base:
        source, base = f"{GENERAL}_ENDPOINT", env.get(f"{GENERAL}_ENDPOINT", "")
    return source, base.rstrip("/") + PATH if base else ""


def _read_milliseconds(name: str, text: str, default: float) -> float:
    """Seconds. Raises ValueError."""
    if not text:
        return default
    try:
        found = float(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if not 0 < found < math.inf:
        raise ValueError(f"{name}: {text} is not a positive number of milliseconds")
    return found / 1000


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
        self._path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._queue: deque[tuple[bytes, int]] = deque()  # spans, and what makes dates of their times
        self._clock = WallClock()
        self._dropped = 0  # since the queue is full
        self._reported = ""  # the last problem, which is logged once

    def add(self, span: bytes) -> None:
        if len(self._queue) >= QUEUE:
            if not self._dropped:
                log.warning("spans are dropped: %d wait for the collector already", QUEUE)
            self._dropped += 1
            _processed.labels(QUEUE_FULL).inc()
            return
        self._clock.has_stepped()
        self._queue.append((span, self._clock.offset))

    async def run(self) -> None:
        """Send batches until cancelled."""
        while True:
            await asyncio.sleep(self._options.delay)
            await self.flush(self._options.timeout)

    async def flush(self, timeout: float) -> None:
        """Send what is queued, until the collector does not answer."""
        while self._queue:
            batch = [self._queue[n] for n in range(min(BATCH, len(self._queue)))]  # threads may append
            if not await self._send(batch, timeout):
                break
            for _ in batch:
                self._queue.popleft()
        if self._dropped and len(self._queue) < QUEUE:
            self._report_dropped()

    def _report_dropped(self) -> None:
        log.warning("%d spans were dropped while %d waited for the collector", self._dropped, QUEUE)
        self._dropped = 0

    async def close(self) -> None:
        await self.flush(LAST_TIMEOUT)
        if self._dropped:
            self._report_dropped()
        if self._queue:
            log.warning("%d spans were not sent to the collector at %s", len(self._queue), self._options.url)
            _exported.labels(NOT_SENT).inc(len(self._queue))
        await self._http.close()

    async def _send(self, batch: list[tuple[bytes, int]], timeout: float) -> bool:
        """Whether the batch is done with: accepted, or refused for good."""
        decoded = ((decode_span(packed), offset) for packed, offset in batch)
        spans = [shift(span, offset) for span, offset in decoded if span.end and span.traces]
        if not spans:
            return True
        body = encode_spans(spans, 0, self._resource)
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
        _processed.labels("").inc(len(spans))
        if answer.status >= 400:
            _exported.labels(str(answer.status)).inc(len(spans))
            self._report(f"refuses spans with {answer.status}: {answer.body[:200].decode(errors='replace')}")
        else:
            _exported.labels("").inc(len(spans))
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
