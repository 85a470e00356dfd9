"""Spans on disk: kept when a process is killed, bounded by size and age, read while others write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from volplane.base import span_store, trace
from volplane.base.span_store import SpanReader, SpanRecorder
from volplane.base.trace import Trace

A, B = "a" * 32, "b" * 32


def record(directory: Path, role: str = "up", max_size: int = 1 << 20, max_age: float = 3600.0) -> Trace:
    recorded = trace.start()
    recorded.sinks.append(SpanRecorder(directory, role, max_size=max_size, max_age=max_age).write)
    recorded.index.learn("pvc/default/a", (A,))
    return recorded


def test_a_span_is_read_with_its_role_and_the_time_of_day(tmp_path: Path) -> None:
    record(tmp_path, "node/worker-1")
    before = time.time_ns()
    with trace.span("kubelet", "NodeStageVolume", "pvc/default/a", node="worker-1"):
        pass
    (found,) = SpanReader(tmp_path).read()
    assert (found.role, found.span.traces, found.span.attrs) == ("node/worker-1", (A,), {"node": "worker-1"})
    assert before - 10**9 < found.span.start <= found.span.end < time.time_ns() + 10**9


def test_inner_spans_and_calls_in_other_processes_know_their_parent(tmp_path: Path) -> None:
    record(tmp_path)
    with trace.span("attacher", "outer", "pvc/default/a"):
        header = trace.traceparent()
        with trace.span("host", "inner", "/dev/loop0"):
            pass
    with trace.continue_trace(header), trace.span("driver", "remote", "volume/vol-1"):
        pass
    outer, inner, remote = SpanReader(tmp_path).read()
    assert header == f"00-{A}-{outer.span.id}-01"
    assert inner.span.parent == remote.span.parent == outer.span.id
    assert inner.span.traces == remote.span.traces == (A,)


def test_a_span_that_has_ended_is_no_parent_of_what_its_task_does_later(tmp_path: Path) -> None:
    record(tmp_path)
    with trace.span("kubelet", "StartContainer", "pvc/default/a") as started:
        pass
    trace._scope.set(started)  # as in a task that was started within it
    assert trace.traceparent() == ""
    with trace.span("driver", "later", "volume/x"):
        pass
    assert SpanReader(tmp_path).read()[-1].span.parent == ""


def test_a_span_of_another_trace_names_the_trace_of_its_parent(tmp_path: Path) -> None:
    record(tmp_path)
    with (
        trace.continue_trace(f"00-{B}-00f067aa0ba902b7-01"),
        trace.span("apiserver", "create", "pvc/default/a"),
    ):
        pass
    (found,) = SpanReader(tmp_path).read()
    assert (found.span.traces, found.span.parent) == ((A,), "00f067aa0ba902b7")
    assert found.span.attrs == {"parent_trace": B}


def test_spans_about_no_volume_are_not_kept(tmp_path: Path) -> None:
    record(tmp_path)
    with trace.span("csi-provisioner", "Probe", ""):
        pass
    with trace.span("apiserver", "patch", "node/worker-1"):
        pass
    assert not SpanReader(tmp_path).read()


def test_a_reader_reads_only_what_was_added(tmp_path: Path) -> None:
    record(tmp_path)
    reader = SpanReader(tmp_path)
    trace.mark("binder", "first", "pvc/default/a")
    assert [s.span.step for s in reader.read()] == ["first"]
    trace.mark("binder", "second", "pvc/default/a")
    assert [s.span.step for s in reader.read()] == ["second"]
    assert reader.read() == []


def test_the_oldest_files_are_removed_when_there_is_too_much(tmp_path: Path) -> None:
    record(tmp_path, max_size=4 * span_store.SMALLEST_FILE)
    for number in range(5000):
        trace.mark("binder", f"step {number}", "pvc/default/a", padding="x" * 100)
    files = list(tmp_path.glob("*.spans"))
    assert sum(file.stat().st_size for file in files) <= 5 * span_store.SMALLEST_FILE
    steps = [found.span.step for found in SpanReader(tmp_path).read()]
    assert steps[-1] == "step 4999"
    assert "step 0" not in steps


def test_old_files_are_removed_and_the_newest_of_each_role_is_kept(tmp_path: Path) -> None:
    for name, age in (("up.1", 900.0), ("up.2", 50.0), ("node.1", 60.0)):
        path = tmp_path / f"{name}.spans"
        path.write_text("{}\n" * 100)
        os.utime(path, (time.time() - age, time.time() - age))
    SpanRecorder(tmp_path, "up", max_size=1, max_age=600.0).remove_old_files()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node.1.spans", "up.2.spans"]


def test_node_names_with_dots_are_different_roles(tmp_path: Path) -> None:
    names = ("node-a.eu.internal.1", "node-a.us.internal.1", "node-a.us.internal.2")
    for age, name in enumerate(reversed(names), 1):
        path = tmp_path / f"{name}.spans"
        path.write_text("{}\n" * 100)
        os.utime(path, (time.time() - age, time.time() - age))
    SpanRecorder(tmp_path, "up", max_size=1, max_age=600.0).remove_old_files()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "node-a.eu.internal.1.spans",
        "node-a.us.internal.2.spans",
    ]


def test_a_process_that_lost_its_processor_between_two_clocks_writes_no_wrong_dates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path)
    trace.mark("binder", "before", "pvc/default/a")
    read, lost = time.monotonic_ns, iter([0, 10**9])  # of the span, then of the recorder: a second late
    monkeypatch.setattr(time, "monotonic_ns", lambda: read() + next(lost, 0))
    trace.mark("binder", "after", "pvc/default/a")
    before, after = SpanReader(tmp_path).read()
    assert before.span.start <= after.span.start
    (file,) = tmp_path.glob("*.spans")
    assert len(span_store.HEADERS.findall(file.read_bytes())) == 1


def test_dates_follow_a_clock_that_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path)
    trace.mark("binder", "before", "pvc/default/a")
    read = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: read() + 3600 * 10**9)
    trace.mark("binder", "after", "pvc/default/a")
    before, after = SpanReader(tmp_path).read()
    assert after.span.start - before.span.start >= 3600 * 10**9


def test_a_damaged_line_is_left_out(tmp_path: Path) -> None:
    record(tmp_path)
    trace.mark("binder", "good", "pvc/default/a")
    (file,) = tmp_path.glob("*.spans")
    with file.open("ab") as opened:
        opened.write(b"\0\0\0\n[1, 2\nno end")
    assert [s.span.step for s in SpanReader(tmp_path).read()] == ["good"]


LIFE = '{"role":"up","pid":1,"life":"%s","wall_offset":0}'
STEP = '["binder","%s","pvc/default/a",5,6,{},"",["aa"],"id","up"]'


@pytest.mark.parametrize(
    ("lines", "steps", "why"),
    [
        pytest.param([STEP % "lost"], [], "no header before it", id="no header"),
        pytest.param(["{", STEP % "lost"], [], "truncated", id="the header is damaged"),
        pytest.param(['{"role":"up"}', STEP % "x"], [], "missing required field", id="a foreign header"),
        pytest.param([LIFE % "1-zz", STEP % "x"], [], "invalid literal", id="a header without its time"),
        pytest.param([LIFE % "1-a", '["x"]', STEP % "good"], ["good"], "at least", id="a foreign list"),
        pytest.param([LIFE % "1-a", "7", '"x"', STEP % "good"], ["good"], "array", id="no list"),
        pytest.param([LIFE % "1-a", STEP % "good"], ["good"], "", id="undamaged"),
    ],
)
def test_damaged_and_foreign_lines_are_skipped_and_reported_once(
    lines: list[str], steps: list[str], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "up.1a.spans"
    file.write_text("".join(f"{line}\n" for line in lines))
    reader = SpanReader(tmp_path)
    assert [stored.span.step for stored in reader.read()] == steps
    with file.open("a") as opened:
        opened.write("nonsense\n" if why else "")
    assert reader.read() == []
    assert [why in record.getMessage() for record in caplog.records] == [True] * bool(why)


@pytest.mark.parametrize("life", ["x-a", "99999999999999999999-a"])
def test_a_span_of_a_process_that_cannot_be_is_cut_off(life: str, tmp_path: Path) -> None:
    begun = '["binder","begun","pvc/default/a",5,0,{},"",["aa"],"id",""]'
    (tmp_path / "up.1a.spans").write_text(f"{LIFE % life}\n{begun}\n")
    reader = SpanReader(tmp_path)
    assert reader.read() == []
    assert [stored.is_cut_off for stored in reader.in_progress()] == [True]


def test_a_directory_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    record(tmp_path / "file")
    trace.mark("binder", "one", "pvc/default/a")
    trace.mark("binder", "two", "pvc/default/a")
    assert [r.getMessage().split(":")[0] for r in caplog.records] == [
        f"steps of volumes are not recorded in {tmp_path / 'file'}"
    ]


KILLED = """
import os, signal, sys
from pathlib import Path
from volplane.base import trace
from volplane.base.span_store import SpanRecorder
recorded = trace.start()
recorded.sinks.append(SpanRecorder(Path(sys.argv[1]), "node", max_size=1 << 20, max_age=60).write)
recorded.index.learn("pv/x", ("a" * 32,))
trace.mark("kubelet", "before", "pv/x")
with trace.span("kubelet", "NodeStageVolume", "pv/x") as span:
    span.announce()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_what_it_did_and_what_it_had_begun(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    reader = SpanReader(tmp_path)
    assert [found.span.step for found in reader.read()] == ["before"]
    (begun,) = reader.in_progress()
    assert (begun.span.step, begun.span.end, begun.is_cut_off) == ("NodeStageVolume", 0, True)


def test_a_span_in_progress_is_not_cut_off(tmp_path: Path) -> None:
    record(tmp_path)
    reader = SpanReader(tmp_path)
    with trace.span("kubelet", "NodeStageVolume", "pvc/default/a") as span:
        span.announce()
        reader.read()
        (begun,) = reader.in_progress()
        assert not begun.is_cut_off
    assert [found.span.step for found in reader.read()] == ["NodeStageVolume"]
    assert reader.in_progress() == []


def record_by_turns(directory: Path) -> tuple[SpanRecorder, list[Callable[[], None]]]:
    """A recorder as in an event loop, and what it has scheduled for the end of the turn."""
    scheduled: list[Callable[[], None]] = []
    recorder = SpanRecorder(directory, "up", max_size=1 << 20, max_age=60.0, schedule=scheduled.append)
    recorded = trace.start()
    recorded.sinks.append(recorder.write)
    recorded.index.learn("pvc/default/a", (A,))
    return recorder, scheduled


def test_spans_of_one_turn_of_the_loop_are_written_together(tmp_path: Path) -> None:
    _, scheduled = record_by_turns(tmp_path)
    for step in ("first", "second"):
        with trace.span("kubelet", step, "pvc/default/a"):
            pass
    assert not SpanReader(tmp_path).read()
    (write_all,) = scheduled
    write_all()
    assert [stored.span.step for stored in SpanReader(tmp_path).read()] == ["first", "second"]


def test_a_span_of_another_thread_is_written_at_once_after_those_that_wait(tmp_path: Path) -> None:
    recorder, _ = record_by_turns(tmp_path)
    recorded = trace.current()
    assert recorded is not None
    with recorded.span("kubelet", "waits", "pvc/default/a"):
        pass

    def mount() -> None:
        with recorded.span("host", "mount", "pvc/default/a"):
            pass

    thread = threading.Thread(target=mount)
    thread.start()
    thread.join()
    assert [stored.span.step for stored in SpanReader(tmp_path).read()] == ["waits", "mount"]
    recorder.close()
    assert len(SpanReader(tmp_path).read()) == 2


def test_what_waits_is_written_when_the_recorder_is_closed(tmp_path: Path) -> None:
    recorder, _ = record_by_turns(tmp_path)
    trace.mark("kubelet", "step", "pvc/default/a")
    recorder.close()
    assert len(SpanReader(tmp_path).read()) == 1
