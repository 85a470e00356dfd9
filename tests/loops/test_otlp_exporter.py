"""The exporter: its options, batches, retries, and what it does with a collector that refuses."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from volplane import web
from volplane.base import trace
from volplane.base.trace import Trace
from volplane.loops.otlp_exporter import ExportOptions, OtlpExporter, export_spans, read_export_options
from volplane.web import Request, Response

A = "a" * 32
BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Collector:
    """Answers with the given codes, then with 200."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.requests: list[Request] = []
        self.url = ""

    async def __call__(self, request: Request) -> Response:
        self.requests.append(request)
        return Response(status=self.codes.pop(0) if self.codes else 200, headers=[], body=b"{}")

    def steps(self) -> list[str]:
        return [span["name"] for request in self.requests for span in spans_of(request)]


def spans_of(request: Request) -> list[dict[str, Any]]:
    body = request.body
    if request.headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    groups = json.loads(body)["resourceSpans"]
    return [span for group in groups for scope in group["scopeSpans"] for span in scope["spans"]]


@asynccontextmanager
async def collecting(*codes: int) -> AsyncIterator[Collector]:
    made = Collector(*codes)
    server = await web.serve(made, host="127.0.0.1", port=0)
    made.url = f"http://127.0.0.1:{server.port}/v1/traces"
    try:
        yield made
    finally:
        await server.close(0)


def record(exporter: OtlpExporter) -> Trace:
    recorded = trace.start()
    recorded.sinks.append(exporter.add)
    recorded.index.learn("pv/x", (A,))
    return recorded


async def test_spans_are_sent_at_the_end_at_the_latest() -> None:
    async with collecting() as collector:
        recorded = trace.start()
        recorded.index.learn("pv/x", (A,))
        options = ExportOptions(collector.url, headers=(("Authorization", "Bearer x"),), delay=600)
        async with export_spans(recorded, "up", options):
            trace.mark("binder", "bind", "pv/x")
        assert not recorded.sinks
        (request,) = collector.requests
        assert (request.path, request.headers.get("authorization")) == ("/v1/traces", "Bearer x")
        assert request.headers.get("content-type") == "application/json"
        assert collector.steps() == ["bind"]


async def test_a_body_can_be_compressed() -> None:
    async with collecting() as collector:
        exporter = OtlpExporter(ExportOptions(collector.url, compress=True), "up")
        record(exporter)
        trace.mark("binder", "bind", "pv/x")
        await exporter.close()
        assert collector.steps() == ["bind"]


@pytest.mark.parametrize(
    ("code", "sent"), [(503, ["bind", "bind"]), (429, ["bind", "bind"]), (400, ["bind"])]
)
async def test_a_batch_is_repeated_only_if_that_can_help(
    code: int, sent: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with collecting(code) as collector:
        exporter = OtlpExporter(ExportOptions(collector.url), "up")
        record(exporter)
        trace.mark("binder", "bind", "pv/x")
        await exporter.flush(5)
        await exporter.close()
        assert collector.steps() == sent
        assert str(code) in caplog.text


async def test_spans_wait_for_a_collector_that_is_down(caplog: pytest.LogCaptureFixture) -> None:
    async with collecting() as collector:
        pass
    exporter = OtlpExporter(ExportOptions(collector.url), "up")
    record(exporter)
    trace.mark("binder", "bind", "pv/x")
    await exporter.flush(5)
    await exporter.flush(5)
    assert len(exporter._queue) == 1
    assert caplog.text.count("does not answer") == 1
    await exporter.close()


async def test_spans_that_have_begun_or_belong_to_no_claim_are_not_sent() -> None:
    async with collecting() as collector:
        exporter = OtlpExporter(ExportOptions(collector.url), "up")
        record(exporter)
        with trace.span("kubelet", "NodeStageVolume", "pv/x") as span:
            span.announce()
        trace.mark("binder", "unknown", "pv/other")
        await exporter.close()
        assert collector.steps() == ["NodeStageVolume"]


@pytest.mark.parametrize(
    ("endpoint", "env", "url"),
    [
        ("", {}, None),
        ("http://c:4318", {}, "http://c:4318/v1/traces"),
        ("http://c:4318/", {BASE: "http://other"}, "http://c:4318/v1/traces"),
        ("", {BASE: "https://c/otlp"}, "https://c/otlp/v1/traces"),
        ("", {BASE: "http://c", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x"}, "http://t/x"),
        ("http://c:4318", {"OTEL_SDK_DISABLED": "true"}, None),
        ("http://c:4318", {"OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
def test_where_spans_are_sent(endpoint: str, env: dict[str, str], url: str | None) -> None:
    found = read_export_options(endpoint, env)
    assert (found and found.url) == url


def test_the_other_standard_variables() -> None:
    env = {
        BASE: "http://c",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    found = read_export_options("", env)
    assert found == ExportOptions("http://c/v1/traces", (("api-key", "a b"),), 2.5, 0.1, True)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({BASE: "collector:4317"}, "not an HTTP address"),
        ({BASE: "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc is not supported; use http/json"),
        ({BASE: "http://c", "OTEL_EXPORTER_OTLP_HEADERS": "x"}, "'x' is not KEY=VALUE"),
        ({BASE: "http://c", "OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "could not convert"),
    ],
)
def test_bad_options_are_refused(env: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_export_options("", env)
