"""The journey's raw material: who did which step for which object, and how long it took.

Spans go into one bounded ring for the whole process, newest kept, so that tracing is always on and never
grows; there each is a string of bytes, which takes half the memory. A span is recorded when it ends;
`spans()` gives them in the order in which they began.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Mapping
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


_ring: deque[bytes] = deque(maxlen=CAPACITY)
_pack = msgpack.Encoder(enc_hook=str).encode
_unpack = msgpack.Decoder().decode


class span:
    """`with span("attacher", "ControllerPublishVolume", "va/x"):`; `async with` does the same."""

    __slots__ = ("attrs", "component", "start", "step", "subject")

    def __init__(self, component: str, step: str, subject: str, **attrs: object) -> None:
        self.component, self.step, self.subject, self.attrs = component, step, subject, attrs
        self.start = 0

    def __enter__(self) -> span:
        self.start = time.monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        end = time.monotonic_ns()
        text = "" if error is None else f"{type(error).__name__}: {error}"
        _append(self.component, self.step, self.subject, self.start, end, self.attrs, text)

    async def __aenter__(self) -> span:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, where)


def trace_calls(component: str, step: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For a function whose every call is a step; its first argument is the subject."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(component, step, str(args[0]) if args else ""):
                return function(*args, **kwargs)

        return wrapper

    return decorate


def mark(component: str, step: str, subject: str, **attrs: object) -> None:
    """A step without a length."""
    now = time.monotonic_ns()
    _append(component, step, subject, now, now, attrs)


def spans(subject_prefix: str = "") -> list[Span]:
    kept = (Span(*_unpack(packed)) for packed in tuple(_ring))
    return sorted((s for s in kept if s.subject.startswith(subject_prefix)), key=lambda s: s.start)


def _append(*span: object) -> None:
    try:
        packed = _pack(span)
    except UnicodeEncodeError:  # the name of a file may hold bytes that are no text
        packed = _pack(_readable(span))
    _ring.append(packed)


def _readable(value: object) -> object:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {key: _readable(of) for key, of in value.items()}
    return [_readable(part) for part in value] if isinstance(value, tuple) else value


def clear() -> None:
    _ring.clear()
