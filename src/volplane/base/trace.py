"""Spans: which component did which step for which object, and how long it took.

A `Trace` belongs to one cluster, or to the process of one role. It is a bounded ring of the newest spans, so
tracing is always on and never grows; each span is stored as bytes, which takes half the memory. `start`
makes a trace the one of the current task and of all tasks it starts; without a trace, spans are dropped. A
span is recorded when it ends; `Trace.spans` returns them in the order in which they began.

A trace with sinks (the file of `base/span_store.py`, the exporter of `base/otlp.py`) also gives each span an
id, its parent, and the claims it belongs to. Without sinks this costs nothing.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import ParamSpec, TypeVar

import msgspec
from msgspec import Struct

from volplane.base.trace_context import (
    SpanIds,
    SpanScope,
    TraceIndex,
    format_traceparent,
    parse_traceparent,
)

P = ParamSpec("P")
T = TypeVar("T")

CAPACITY = 8_192  # the steps of some two hundred volumes


class Span(Struct, frozen=True, array_like=True):
    component: str
    step: str
    subject: str  # "pvc/default/my-app-pvc", "pv/<name>", "pod/default/x", "va/<name>"
    start: int  # time.monotonic_ns
    end: int  # 0: has begun, and its end was not recorded
    attrs: Mapping[str, object] = {}
    error: str = ""
    traces: tuple[str, ...] = ()  # of the claims that it was done for
    id: str = ""
    parent: str = ""


Sink = Callable[[bytes], None]  # called with each encoded span

_SUBJECT, _TRACES = (Span.__struct_fields__.index(name) for name in ("subject", "traces"))
# Kept also if their claim is not known: a reader may know it from other spans of the same subject.
_ABOUT_VOLUMES = ("pvc/", "pv/", "va/", "volume/")

_encode = msgspec.json.Encoder(enc_hook=str).encode
decode_span = msgspec.json.Decoder(Span).decode


class Trace:
    """The newest spans of one cluster."""

    def __init__(self) -> None:
        self._ring: deque[bytes] = deque(maxlen=CAPACITY)
        self.sinks: list[Sink] = []
        self.index = TraceIndex()
        self.ids = SpanIds()

    @property
    def is_recording(self) -> bool:
        """Whether spans are kept or exported, and not only the newest in memory."""
        return bool(self.sinks)

    def span(self, component: str, step: str, subject: str, **attrs: object) -> span:
        """A span of this trace, whichever is the current one."""
        made = span(component, step, subject, **attrs)
        made.trace = self
        return made

    def spans(self, subject_prefix: str = "") -> list[Span]:
        kept = map(decode_span, tuple(self._ring))
        return sorted((s for s in kept if s.subject.startswith(subject_prefix)), key=lambda s: s.start)

    def append(self, *fields: object) -> None:
        """Record a span, given by the fields of `Span`."""
        packed = _pack(fields)
        self._ring.append(packed)
        if (
            self.sinks
            and len(fields) > _TRACES
            and (fields[_TRACES] or _is_about_volume(str(fields[_SUBJECT])))
        ):
            for sink in self.sinks:
                sink(packed)

    def announce(self, *fields: object) -> None:
        """Record that a span has begun, so that it is known even if this process does not live to its end."""
        if fields[_TRACES]:
            packed = _pack(fields)
            for sink in self.sinks:
                sink(packed)

    def clear(self) -> None:
        self._ring.clear()


_current: ContextVar[Trace | None] = ContextVar("volplane_trace", default=None)
_scope: ContextVar[SpanScope | span | None] = ContextVar("volplane_span", default=None)


def start() -> Trace:
    """Record the spans of this task, and of what it starts from now on, in a new trace."""
    made = Trace()
    use(made)
    return made


def use(trace: Trace) -> None:
    """Record the spans of this task, and of what it starts from now on, in a trace."""
    _current.set(trace)


def current() -> Trace | None:
    return _current.get()


def recording() -> Trace | None:
    """The current trace if its spans are kept or exported."""
    trace = _current.get()
    return trace if trace is not None and trace.sinks else None


def traceparent() -> str:
    """The header for a request that is made now; "" if it belongs to no trace."""
    scope = _current_scope()
    if scope is None:
        return ""
    return format_traceparent(_traces_of(scope), scope.id)


@contextmanager
def continue_trace(header: str) -> Iterator[None]:
    """Record what is done here as part of the caller's span."""
    scope = parse_traceparent(header)
    if scope is None:
        yield
        return
    before = _scope.get()
    _scope.set(scope)
    try:
        yield
    finally:
        _scope.set(before)


class span:
    """`with span("attacher", "ControllerPublishVolume", "va/x"):`; `async with` does the same."""

    __slots__ = (
        "_before",
        "attrs",
        "component",
        "id",
        "is_open",
        "start",
        "step",
        "subject",
        "trace",
        "traces",
    )

    def __init__(self, component: str, step: str, subject: str, **attrs: object) -> None:
        self.component, self.step, self.subject, self.attrs = component, step, subject, attrs
        self.start = 0
        self.trace: Trace | None = None  # None: the current one
        self.traces: tuple[str, ...] = ()  # of the subject, unless they are known already
        self.id = ""
        self._before: SpanScope | span | None = None
        self.is_open = False  # while it is recorded with its id and parent

    def __enter__(self) -> span:
        trace = self.trace or _current.get()
        if trace is not None and trace.sinks:
            self._open(trace)
        self.start = time.monotonic_ns()
        return self

    def announce(self) -> span:
        """Record that it has begun; called after it is entered, for calls that leave this process."""
        trace = self.trace or _current.get()
        if trace is not None and self.is_open:
            trace.announce(*self._fields(0, ""))
        return self

    def _open(self, trace: Trace) -> None:
        self.is_open = True
        self._before = before = _current_scope()
        self.traces = self.traces or trace.index.find(self.subject)
        if before is not None:
            around = _traces_of(before)
            self.traces = self.traces or around
            if not around and isinstance(before, span):
                before.traces = self.traces  # what is done within it tells what it is done for
            elif around and around[0] != self.traces[0]:
                self.attrs["parent_trace"] = around[0]  # of another claim, or of a caller's own trace
        self.id = self.id or trace.ids.make()
        _scope.set(self)

    def _fields(self, end: int, error: str) -> tuple[object, ...]:
        parent = self._before.id if self._before is not None else ""
        own = (self.component, self.step, self.subject, self.start, end, self.attrs, error)
        return (*own, _traces_of(self), self.id, parent)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        trace = self.trace or _current.get()
        if trace is None:
            return
        end = time.monotonic_ns()
        text = "" if error is None else f"{type(error).__name__}: {error}"
        if not self.is_open:
            trace.append(self.component, self.step, self.subject, self.start, end, self.attrs, text)
            return
        self.is_open = False  # tasks that it has started may live longer
        _scope.set(self._before)
        trace.append(*self._fields(end, text))

    async def __aenter__(self) -> span:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, where)


def trace_calls(component: str, step: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator that records each call as a span; the first argument is the subject."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(component, step, str(args[0]) if args else ""):
                return function(*args, **kwargs)

        return wrapper

    return decorate


def mark(component: str, step: str, subject: str, **attrs: object) -> None:
    """A step without a duration."""
    trace = _current.get()
    if trace is None:
        return
    now = time.monotonic_ns()
    if not trace.sinks:
        trace.append(component, step, subject, now, now, attrs)
        return
    scope = _current_scope()
    traces = trace.index.find(subject) or (_traces_of(scope) if scope is not None else ())
    parent = scope.id if scope is not None else ""
    trace.append(component, step, subject, now, now, attrs, "", traces, trace.ids.make(), parent)


def _current_scope() -> SpanScope | span | None:
    """What is done now is a part of this. Not of a span that has ended and whose task goes on."""
    scope = _scope.get()
    while isinstance(scope, span) and not scope.is_open:
        scope = scope._before
    return scope


def _traces_of(scope: SpanScope | span) -> tuple[str, ...]:
    """The traces of a span in progress; its subject may have been learned after it began."""
    if not scope.traces and isinstance(scope, span):
        trace = scope.trace or _current.get()
        scope.traces = trace.index.find(scope.subject) if trace is not None else ()
    return scope.traces


def _is_about_volume(subject: str) -> bool:
    return subject.startswith(_ABOUT_VOLUMES) and not subject.endswith("/")


def _pack(fields: tuple[object, ...]) -> bytes:
    try:
        return _encode(fields)
    except UnicodeEncodeError:  # a file name may hold bytes that are not text
        return _encode(_readable(fields))


def _readable(value: object) -> object:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {key: _readable(of) for key, of in value.items()}
    return [_readable(part) for part in value] if isinstance(value, tuple) else value
