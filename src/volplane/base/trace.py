"""Spans: which component did which step for which object, and how long it took.

A `Trace` belongs to one cluster, or to the process of one role. It is a bounded ring of the newest spans, so
tracing is always on and never grows; each span is stored as bytes, which takes half the memory. `start`
makes a trace the one of the current task and of all tasks it starts; without a trace, spans are dropped. A
span is recorded when it ends; `Trace.spans` returns them in the order in which they began.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import ParamSpec, TypeVar

from msgspec import Struct, msgpack

P = ParamSpec("P")
T = TypeVar("T")

CAPACITY = 8_192  # the steps of some two hundred volumes


class Span(Struct, frozen=True):
    component: str
    step: str
    subject: str  # "pvc/default/my-app-pvc", "pv/<name>", "pod/default/x", "va/<name>"
    start: int  # time.monotonic_ns
    end: int
    attrs: Mapping[str, object] = {}
    error: str = ""


_pack = msgpack.Encoder(enc_hook=str).encode
_unpack = msgpack.Decoder().decode


class Trace:
    """The newest spans of one cluster."""

    def __init__(self) -> None:
        self._ring: deque[bytes] = deque(maxlen=CAPACITY)

    def span(self, component: str, step: str, subject: str, **attrs: object) -> span:
        """A span of this trace, whichever is the current one."""
        made = span(component, step, subject, **attrs)
        made.trace = self
        return made

    def spans(self, subject_prefix: str = "") -> list[Span]:
        kept = (Span(*_unpack(packed)) for packed in tuple(self._ring))
        return sorted((s for s in kept if s.subject.startswith(subject_prefix)), key=lambda s: s.start)

    def append(self, *span: object) -> None:
        try:
            packed = _pack(span)
        except UnicodeEncodeError:  # a file name may hold bytes that are not text
            packed = _pack(_readable(span))
        self._ring.append(packed)

    def clear(self) -> None:
        self._ring.clear()


_current: ContextVar[Trace | None] = ContextVar("volplane_trace", default=None)


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


class span:
    """`with span("attacher", "ControllerPublishVolume", "va/x"):`; `async with` does the same."""

    __slots__ = ("attrs", "component", "start", "step", "subject", "trace")

    def __init__(self, component: str, step: str, subject: str, **attrs: object) -> None:
        self.component, self.step, self.subject, self.attrs = component, step, subject, attrs
        self.start = 0
        self.trace: Trace | None = None  # None: the current one

    def __enter__(self) -> span:
        self.start = time.monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        trace = self.trace or _current.get()
        if trace is not None:
            end = time.monotonic_ns()
            text = "" if error is None else f"{type(error).__name__}: {error}"
            trace.append(self.component, self.step, self.subject, self.start, end, self.attrs, text)

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
    if (trace := _current.get()) is not None:
        now = time.monotonic_ns()
        trace.append(component, step, subject, now, now, attrs)


def _readable(value: object) -> object:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {key: _readable(of) for key, of in value.items()}
    return [_readable(part) for part in value] if isinstance(value, tuple) else value
