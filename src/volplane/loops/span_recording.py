"""Record the spans of a process: on disk, and for a tracing system.

A role that `volplane up --separate` has started gets its options in the environment; the same variables work
for a role that is started alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from msgspec import Struct

from volplane.base.span_store import SpanRecorder
from volplane.base.tasks import background
from volplane.base.trace import Trace
from volplane.loops.otlp_exporter import export_spans, read_export_options

DIRECTORY = "VOLPLANE_SPANS"  # environment variables
ROLE, SIZE, AGE = "VOLPLANE_SPANS_ROLE", "VOLPLANE_SPANS_SIZE", "VOLPLANE_SPANS_AGE"
OTLP_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
OTLP_TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
CLEANING_INTERVAL = 600.0  # seconds
DEFAULT_SIZE, DEFAULT_AGE = 64 << 20, 7 * 86400.0


class RecordingOptions(Struct, frozen=True):
    directory: str = ""
    max_size: int = DEFAULT_SIZE  # bytes; 0: nothing is recorded on disk
    max_age: float = DEFAULT_AGE  # seconds
    otlp_endpoint: str = ""  # "": as the standard variables say

    def __post_init__(self) -> None:
        if self.max_size < 0:
            raise ValueError(f"--journey-max-size must not be negative, not {self.max_size}")
        if self.max_age <= 0:
            raise ValueError(f"--journey-max-age must be positive, not {self.max_age:g}")
        read_export_options(self.otlp_endpoint)  # raises ValueError

    def to_environment(self, role: str) -> dict[str, str]:
        """The variables with which a process records as this role."""
        # The address of the option comes first here, too: the user's own variable for traces would win.
        otlp = {OTLP_ENDPOINT: self.otlp_endpoint, OTLP_TRACES_ENDPOINT: ""} if self.otlp_endpoint else {}
        where = {DIRECTORY: self.directory, ROLE: role, SIZE: str(self.max_size), AGE: str(self.max_age)}
        return where | otlp


def read_environment(environment: Mapping[str, str] = os.environ) -> tuple[str, RecordingOptions]:
    """The role of this process, and how it records. Raises ValueError."""
    role = environment.get(ROLE) or f"pid-{os.getpid()}"
    return role, RecordingOptions(
        environment.get(DIRECTORY, ""),
        int(environment.get(SIZE, DEFAULT_SIZE)),
        float(environment.get(AGE, DEFAULT_AGE)),
    )


@asynccontextmanager
async def record_spans(trace: Trace, role: str, options: RecordingOptions) -> AsyncIterator[None]:
    """Record the spans of a trace, as long as the context lasts."""
    async with AsyncExitStack() as stack:
        if options.directory and options.max_size:
            await stack.enter_async_context(_record_on_disk(trace, role, options))
        if (export := read_export_options(options.otlp_endpoint)) is not None:
            await stack.enter_async_context(export_spans(trace, role, export))
        yield


@asynccontextmanager
async def _record_on_disk(trace: Trace, role: str, options: RecordingOptions) -> AsyncIterator[None]:
    recorder = SpanRecorder(
        Path(options.directory),
        role,
        max_size=options.max_size,
        max_age=options.max_age,
        schedule=asyncio.get_running_loop().call_soon,
    )
    trace.sinks.append(recorder.write)
    try:
        async with background(_remove_old_files(recorder)):
            yield
    finally:
        trace.sinks.remove(recorder.write)
        recorder.close()


async def _remove_old_files(recorder: SpanRecorder) -> None:
    while True:
        await asyncio.sleep(CLEANING_INTERVAL)
        await asyncio.to_thread(recorder.remove_old_files)
