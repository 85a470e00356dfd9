"""Spans are found by what they mention, in all files of a directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from volplane.base import trace
from volplane.base.span_search import search_directory
from volplane.base.span_store import SpanReader, SpanRecorder
from volplane.base.trace import Trace

A, B = "a" * 32, "b" * 32


def record(directory: Path, role: str = "up") -> tuple[Trace, SpanRecorder]:
    recorded = trace.start()
    recorder = SpanRecorder(directory, role, max_size=1 << 20, max_age=3600.0)
    recorded.sinks.append(recorder.write)
    recorded.index.learn("pvc/default/a", (A,))
    recorded.index.learn("pvc/default/b", (B,))
    return recorded, recorder


def test_only_spans_with_one_of_the_texts_are_found(tmp_path: Path) -> None:
    record(tmp_path)
    for name in ("a", "b", "a"):
        with trace.span("binder", "bind", f"pvc/default/{name}"):
            pass
    assert [s.span.subject for s in search_directory(tmp_path, [B])] == ["pvc/default/b"]
    assert len(search_directory(tmp_path, ['"pvc/default/a"'])) == 2
    assert len(search_directory(tmp_path, [A, B])) == 3
    assert search_directory(tmp_path, ["pvc/default/c"]) == []
    assert search_directory(tmp_path, []) == []


def test_what_is_found_is_what_a_reader_reads_in_all_files_and_roles(tmp_path: Path) -> None:
    for role in ("node/worker-1", "apiserver"):
        record(tmp_path, role)
        for number in range(500):
            with trace.span(role, f"step {number}", "pvc/default/a", text="x" * 200):
                pass
    assert len(list(tmp_path.glob("*.spans"))) > 2
    assert search_directory(tmp_path, [A]) == SpanReader(tmp_path).read()


def test_a_span_that_was_announced_and_has_ended_is_one(tmp_path: Path) -> None:
    record(tmp_path)
    with trace.span("csi-attacher", "ControllerPublishVolume", "pvc/default/a") as made:
        made.announce()
        (begun,) = search_directory(tmp_path, [A])
        assert begun.span.end == 0
        assert not begun.is_cut_off
    (ended,) = search_directory(tmp_path, [A])
    assert ended.span.end > 0


def test_a_span_of_an_earlier_process_was_cut_off(tmp_path: Path) -> None:
    record(tmp_path)
    with trace.span("csi-attacher", "ControllerPublishVolume", "pvc/default/a") as made:
        made.announce()
        record(tmp_path)  # the role was started again
        with trace.span("csi-attacher", "attached", "pvc/default/a"):
            pass
        first, second = search_directory(tmp_path, [A])
    assert (first.is_cut_off, second.is_cut_off) == (True, False)


@pytest.mark.parametrize("damage", [b"\0\0\0\n", b'{"role":\n', b'["a",\n', b"\xff\xfe\n"])
def test_damaged_lines_are_left_out(tmp_path: Path, damage: bytes) -> None:
    record(tmp_path)
    with trace.span("binder", "bind", "pvc/default/a"):
        pass
    (file,) = tmp_path.glob("*.spans")
    with file.open("ab") as output:
        output.write(damage.replace(b"a", A.encode()) + damage)
    with trace.span("binder", "bind again", "pvc/default/a"):
        pass
    assert [s.span.step for s in search_directory(tmp_path, [A])] == ["bind", "bind again"]


def test_a_line_that_is_being_written_is_found_when_it_is_complete(tmp_path: Path) -> None:
    record(tmp_path)
    with trace.span("binder", "bind", "pvc/default/a"):
        pass
    (file,) = tmp_path.glob("*.spans")
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    assert search_directory(tmp_path, [A]) == []
    file.write_bytes(whole)
    assert len(search_directory(tmp_path, [A])) == 1


def test_a_reader_that_skips_reads_what_is_added_after_that(tmp_path: Path) -> None:
    record(tmp_path)
    with trace.span("binder", "before", "pvc/default/a"):
        pass
    reader = SpanReader(tmp_path)
    reader.skip()
    assert reader.read() == []
    with trace.span("binder", "after", "pvc/default/a"):
        pass
    (found,) = reader.read()
    assert found == search_directory(tmp_path, ["after"])[0]


async def test_an_empty_directory_has_nothing(tmp_path: Path) -> None:
    assert await asyncio.to_thread(search_directory, tmp_path / "none", [A]) == []
