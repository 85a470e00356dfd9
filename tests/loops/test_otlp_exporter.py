"""The exporter: its options, batches, retries, and what it does with a collector that refuses."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from volplane import web
from volplane.base import metrics, trace
from volplane.base.trace import Trace
from volplane.loops import otlp_exporter
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


def counted(name: str, error: str) -> float:
    return metrics.registry.get_sample_value(name, {"error_type": error}) or 0.0


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


async def test_a_full_queue_takes_no_more_spans_and_says_how_many(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also while a batch is repeated: what waited first is sent first, and nothing is lost of it."""
    monkeypatch.setattr(otlp_exporter, "QUEUE", 3)
    dropped = counted("otel_sdk_processor_span_processed_total", "queue_full")
    sent = counted("otel_sdk_exporter_span_exported_total", "")
    async with collecting(503) as collector:
        exporter = OtlpExporter(ExportOptions(collector.url), "up")
        record(exporter)
        for step in ("one", "two", "three"):
            trace.mark("binder", step, "pv/x")
        await exporter.flush(5)  # 503
        for step in ("four", "five"):
            trace.mark("binder", step, "pv/x")
        await exporter.flush(5)
        trace.mark("binder", "six", "pv/x")
        await exporter.close()
        assert collector.steps() == ["one", "two", "three"] * 2 + ["six"]
    assert counted("otel_sdk_processor_span_processed_total", "queue_full") - dropped == 2
    assert counted("otel_sdk_exporter_span_exported_total", "") - sent == 4
    assert caplog.text.count("spans are dropped: 3 wait for the collector already") == 1
    assert caplog.text.count("2 spans were dropped while 3 waited for the collector") == 1


async def test_spans_of_threads_may_come_while_a_batch_is_sent() -> None:
    async with collecting() as collector:
        exporter = OtlpExporter(ExportOptions(collector.url), "up")
        recorded = record(exporter)

        def mark() -> None:
            for _ in range(300):
                with recorded.span("host", "mount", "pv/x"):
                    pass

        trace.mark("binder", "first", "pv/x")
        await asyncio.gather(*(asyncio.to_thread(mark) for _ in range(4)), exporter.flush(5))
        await exporter.close()
        assert len(collector.steps()) == 1201


async def test_spans_that_could_not_be_sent_are_counted_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async with collecting() as collector:
        pass
    before = counted("otel_sdk_exporter_span_exported_total", "timeout")
    exporter = OtlpExporter(ExportOptions(collector.url), "up")
    record(exporter)
    trace.mark("binder", "bind", "pv/x")
    await exporter.close()
    assert counted("otel_sdk_exporter_span_exported_total", "timeout") - before == 1
    assert "1 spans were not sent" in caplog.text


async def test_dates_are_those_of_the_clock_when_the_step_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the clock when it is sent, which may have been set meanwhile."""
    async with collecting() as collector:
        exporter = OtlpExporter(ExportOptions(collector.url), "up")
        record(exporter)
        before = time.time_ns()
        trace.mark("binder", "before", "pv/x")
        read = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: read() + 3600 * 10**9)
        trace.mark("binder", "after", "pv/x")
        await exporter.close()
    first, second = (int(s["startTimeUnixNano"]) for r in collector.requests for s in spans_of(r))
    assert abs(first - before) < 600 * 10**9
    assert second - first >= 3600 * 10**9


async def test_a_process_that_lost_its_processor_between_two_clocks_sends_no_wrong_dates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with collecting() as collector:
        exporter = OtlpExporter(ExportOptions(collector.url), "up")
        record(exporter)
        trace.mark("binder", "before", "pv/x")
        lost, clock = iter([0, 10**9]), time.monotonic_ns  # of the span, then of the exporter: a second late
        monkeypatch.setattr(time, "monotonic_ns", lambda: clock() + next(lost, 0))
        trace.mark("binder", "after", "pv/x")
        assert len({offset for _, offset in exporter._queue}) == 1
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
        ("http://c:4318", {"OTEL_SDK_DISABLED": "TRUE"}, None),
        ("http://c:4318", {"OTEL_SDK_DISABLED": "false"}, "http://c:4318/v1/traces"),
        ("http://c:4318", {"OTEL_TRACES_EXPORTER": "none"}, None),
        ("http://c:4318", {"OTEL_TRACES_EXPORTER": "console,zipkin"}, None),
        ("", {BASE: "http://c", "OTEL_TRACES_EXPORTER": "console, otlp"}, "http://c/v1/traces"),
        ("http://c", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x"}, "http://c/v1/traces"),
    ],
)
def test_where_spans_are_sent(endpoint: str, env: dict[str, str], url: str | None) -> None:
    found = read_export_options(endpoint, env)
    assert (found and found.url) == url


C = "http://c/v1/traces"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, ExportOptions(C)),
        (
            {"OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b,x=y"},
            ExportOptions(C, (("api-key", "a b"), ("x", "y"))),
        ),
        (
            {"OTEL_EXPORTER_OTLP_HEADERS": "a=general", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "a=traces"},
            ExportOptions(C, (("a", "traces"),)),
        ),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "2500"}, ExportOptions(C, timeout=2.5)),
        (
            {"OTEL_EXPORTER_OTLP_TIMEOUT": "2500", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "500"},
            ExportOptions(C, timeout=0.5),
        ),
        ({"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}, ExportOptions(C, compress=True)),
        ({"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip"}, ExportOptions(C, compress=True)),
        ({"OTEL_EXPORTER_OTLP_COMPRESSION": "none"}, ExportOptions(C)),
        ({"OTEL_EXPORTER_OTLP_CERTIFICATE": __file__}, ExportOptions(C, certificate=__file__)),
        ({"OTEL_BSP_SCHEDULE_DELAY": "100"}, ExportOptions(C, delay=0.1)),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, ExportOptions(C)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_the_other_standard_variables(env: dict[str, str], expected: ExportOptions) -> None:
    assert read_export_options("", {BASE: "http://c", **env}) == expected


@pytest.mark.parametrize(
    ("env", "name", "value"),
    [
        ({}, "service.name", "binder"),
        ({"OTEL_SERVICE_NAME": "mine"}, "service.name", "mine"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=other"}, "service.name", "other"),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=other", "OTEL_SERVICE_NAME": "mine"},
            "service.name",
            "mine",
        ),
        ({"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=a%2Cb"}, "deployment.environment", "a,b"),
    ],
)
async def test_the_variables_of_the_resource_are_in_what_is_sent(
    env: dict[str, str], name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, text in env.items():
        monkeypatch.setenv(variable, text)
    async with collecting() as collector:
        exporter = OtlpExporter(ExportOptions(collector.url), "up")
        record(exporter)
        trace.mark("binder", "bind", "pv/x")
        await exporter.close()
    (request,) = collector.requests
    (group,) = json.loads(request.body)["resourceSpans"]
    attributes = {each["key"]: each["value"]["stringValue"] for each in group["resource"]["attributes"]}
    assert attributes[name] == value


async def test_an_address_for_traces_without_a_path_is_used_as_it_is() -> None:
    async with collecting() as collector:
        env = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": collector.url.removesuffix("/v1/traces")}
        options = read_export_options("", env)
        assert options is not None
        exporter = OtlpExporter(options, "up")
        record(exporter)
        trace.mark("binder", "bind", "pv/x")
        await exporter.close()
    assert [request.path for request in collector.requests] == ["/"]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({BASE: "collector:4317"}, f"{BASE}: .* is not an HTTP address"),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "ftp://x"},
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'ftp://x' is not",
        ),
        ({BASE: "http://c", "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"}, "COMPRESSION: zstd is not supported"),
        (
            {BASE: "http://c", "OTEL_EXPORTER_OTLP_CERTIFICATE": "/no/ca"},
            "CERTIFICATE: there is no file /no/ca",
        ),
        (
            {BASE: "http://c", "OTEL_RESOURCE_ATTRIBUTES": "a"},
            "OTEL_RESOURCE_ATTRIBUTES: 'a' is not KEY=VALUE",
        ),
        ({BASE: "http://c", "OTEL_EXPORTER_OTLP_TIMEOUT": "-1"}, "_TIMEOUT: -1 is not a positive number"),
        ({BASE: "http://c", "OTEL_EXPORTER_OTLP_TIMEOUT": "nan"}, "_TIMEOUT: nan is not a positive number"),
        ({BASE: "http://c", "OTEL_BSP_SCHEDULE_DELAY": "0"}, "OTEL_BSP_SCHEDULE_DELAY: 0 is not a positive"),
        ({BASE: "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc is not supported; use http/json"),
        ({BASE: "http://c", "OTEL_EXPORTER_OTLP_HEADERS": "x"}, "'x' is not KEY=VALUE"),
        ({BASE: "http://c", "OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "could not convert"),
    ],
)
def test_bad_options_are_refused(env: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_export_options("", env)
