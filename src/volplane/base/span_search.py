"""Finds recorded spans by what they mention, without reading all of them.

The files of a directory may have hundreds of thousands of spans. A reader wants those of one claim: it gives
the texts that such a line contains (a trace, a subject), and only lines with one of them are decoded.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import structs

from volplane.base.span_store import HEADERS, SUFFIX, RecorderHeader, StoredSpan, is_running
from volplane.base.trace import Span, decode_span


def search_directory(directory: Path, texts: Sequence[str]) -> list[StoredSpan]:
    """The spans that contain one of the texts, in the order of their start.

    Those that have not ended are cut off if their process is gone. Takes some ten milliseconds for each ten
    megabytes, so it belongs in a thread.
    """
    found: list[tuple[RecorderHeader, Span]] = []
    newest: dict[str, RecorderHeader] = {}  # by role: of the process that began last
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        try:
            data = path.read_bytes()
        except FileNotFoundError:  # removed meanwhile
            continue
        headers = _read_headers(data)
        for _, header in headers:
            if began(header) >= began(newest.get(header.role, header)):
                newest[header.role] = header
        found += _search(data, headers, texts)
    return list(_join(found, newest))


def began(header: RecorderHeader) -> int:
    """When a process began to record: a number that is larger for later ones."""
    try:
        return int(header.life.partition("-")[2], 16)
    except ValueError:
        return 0


def _read_headers(data: bytes) -> list[tuple[int, RecorderHeader]]:
    """The headers of a file, each with its position. It is valid for the spans that follow it."""
    headers = []
    for match in HEADERS.finditer(data):
        try:
            headers.append((match.start(), msgspec.json.decode(match[0], type=RecorderHeader)))
        except msgspec.DecodeError:  # damaged by a power cut
            continue
    return headers


def _search(
    data: bytes, headers: Sequence[tuple[int, RecorderHeader]], texts: Sequence[str]
) -> Iterator[tuple[RecorderHeader, Span]]:
    if not headers or not texts:
        return
    positions = [position for position, _ in headers]
    wanted = re.compile(b"|".join(re.escape(text.encode()) for text in texts))
    at = 0
    while (match := wanted.search(data, at)) is not None:
        start = data.rfind(b"\n", 0, match.start()) + 1
        end = data.find(b"\n", match.end())
        if end < 0:  # still being written
            return
        at = end
        number = bisect_right(positions, start) - 1
        if number < 0 or data[start : start + 1] == b"{":
            continue
        try:
            yield headers[number][1], decode_span(data[start:end])
        except (msgspec.DecodeError, ValueError):
            continue


def _join(
    found: Iterable[tuple[RecorderHeader, Span]], newest: dict[str, RecorderHeader]
) -> Iterator[StoredSpan]:
    """A span that was announced and has ended is one span."""
    spans: list[StoredSpan] = []
    open_spans: dict[str, StoredSpan] = {}
    for header, span in found:
        stored = StoredSpan(header.role, shift(span, header.wall_offset))
        if span.end:
            open_spans.pop(span.id, None)
            spans.append(stored)
        else:
            may_live = newest[header.role].life == header.life and is_running(header.life)
            open_spans[span.id] = structs.replace(stored, is_cut_off=not may_live)
    return iter(sorted([*spans, *open_spans.values()], key=lambda stored: stored.span.start))


def shift(span: Span, offset: int) -> Span:
    """The span with times since 1970."""
    return structs.replace(span, start=span.start + offset, end=span.end and span.end + offset)
