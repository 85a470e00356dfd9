"""Which trace a span belongs to.

There is one trace per claim, and its id is the claim's UID without hyphens. Roles in different processes and
on different machines agree on it without talking to each other. A pod without claims has its own trace.

Between processes the context is the header `traceparent` of W3C Trace Context, in HTTP requests and in the
metadata of gRPC calls.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import secrets
from collections.abc import Iterable
from typing import NamedTuple

HEADER = "traceparent"
CAPACITY = 16_384  # subjects whose traces are known
DEEPEST = 4  # attachment → volume → claim → trace

_UUID = re.compile("[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}")
_TRACEPARENT = re.compile("([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_PROVISIONED = re.compile("(?:pv|volume)/pvc-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class SpanScope(NamedTuple):
    """The span of a caller in another process, and the trace that it belongs to."""

    traces: tuple[str, ...]
    id: str


def format_traceparent(traces: tuple[str, ...], span: str) -> str:
    """The header; "" for a span that belongs to no trace. A span of several claims is sent with the first."""
    return f"00-{traces[0]}-{span}-01" if traces else ""


def trace_id(uid: str) -> str:
    """The id of the trace of a claim: 32 hexadecimal digits."""
    text = uid.lower()
    if _UUID.fullmatch(text):
        return text.replace("-", "")
    return hashlib.sha256(uid.encode()).hexdigest()[:32] if uid else ""


def root_span_id(trace: str) -> str:
    """The id of a trace's first span: the creation of the claim. All roles know it without asking."""
    return hashlib.sha256(trace.encode()).hexdigest()[:16]


def parse_traceparent(header: str) -> SpanScope | None:
    """The context of a request; None if the header is missing or invalid."""
    found = _TRACEPARENT.fullmatch(header.strip())
    if found is None or found[1] == "ff" or (found[1] == "00" and found[4]):
        return None
    if found[2] == _NO_TRACE or found[3] == _NO_SPAN:
        return None
    return SpanScope((found[2],), found[3])


class SpanIds:
    """Ids that no other process uses: a counter that begins at a random number."""

    def __init__(self) -> None:
        self._count = itertools.count(secrets.randbits(62) | 1)

    def make(self) -> str:
        return f"{next(self._count):016x}"


class TraceIndex:
    """The traces of subjects: `pvc/default/data`, `pv/x`, `va/x`, `pod/default/x`, `volume/vol-1`.

    A subject is learned from its object. It refers to traces or to other subjects, which may be learned
    later. The oldest are forgotten. A volume that was provisioned has the claim's UID in its name.
    """

    def __init__(self) -> None:
        self._refs: dict[str, tuple[str, ...]] = {}

    def learn(self, subject: str, refs: tuple[str, ...]) -> None:
        known = self._refs
        if known.get(subject) != refs:
            known[subject] = refs
            if len(known) > CAPACITY:
                del known[next(iter(known))]

    def learn_all(self, facts: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        for subject, refs in facts:
            self.learn(subject, refs)

    def is_known(self, subject: str) -> bool:
        return subject in self._refs

    def find(self, subject: str) -> tuple[str, ...]:
        """The traces of a subject, () if it is not known."""
        refs = self._refs.get(subject)
        if refs is None:
            found_uid = _PROVISIONED.fullmatch(subject)
            return (trace_id(found_uid[1]),) if found_uid else ()
        if len(refs) == 1 and "/" not in refs[0]:
            return refs
        found: dict[str, None] = {}
        self._collect(refs, found, DEEPEST)
        return tuple(found)

    def _collect(self, refs: tuple[str, ...], found: dict[str, None], depth: int) -> None:
        for ref in refs:
            if "/" not in ref:
                found[ref] = None
            elif depth:
                self._collect(self._refs.get(ref, ()), found, depth - 1)
