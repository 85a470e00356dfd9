"""A trace is a bounded ring of spans, and belongs to the tasks of one cluster."""

from __future__ import annotations

import asyncio
from contextvars import Context

import pytest

from volplane.base import trace
from volplane.base.trace import Trace


@pytest.fixture
def recorded() -> Trace:
    return trace.start()


async def test_spans_come_in_the_order_of_their_beginning() -> None:
    recorded = trace.start()
    with trace.span("provisioner", "CreateVolume", "pvc/default/a", size=1):
        async with trace.span("ebs", "wait", "pvc/default/a"):
            trace.mark("cloud", "disk", "pvc/default/a")
    spans = recorded.spans("pvc/default/")
    assert [s.step for s in spans] == ["CreateVolume", "wait", "disk"]
    assert spans[0].start <= spans[1].start <= spans[1].end <= spans[0].end
    assert spans[0].attrs == {"size": 1}
    assert spans[2].start == spans[2].end


def test_a_span_that_failed_says_why(recorded: Trace) -> None:
    with pytest.raises(OSError, match="full"), trace.span("node", "mount", "pod/default/x"):
        raise OSError("full")
    assert recorded.spans("pod/")[0].error == "OSError: full"


def test_a_failure_may_name_a_file_that_has_no_proper_name(recorded: Trace) -> None:
    with pytest.raises(OSError, match="odd"), trace.span("node", "mount", "pod/default/x"):
        raise OSError("odd \udcff")
    assert recorded.spans("pod/")[0].error == "OSError: odd \\udcff"


def test_a_mount_may_have_no_proper_name(recorded: Trace) -> None:
    with trace.span("host", "mount", "/odd-\udcff", at="\udcfe"):
        pass
    (found,) = recorded.spans("/odd-")
    assert (found.subject, found.attrs) == ("/odd-\\udcff", {"at": "\\udcfe"})


def test_the_ring_is_bounded(recorded: Trace) -> None:
    for number in range(trace.CAPACITY + 10):
        trace.mark("c", "s", f"pv/{number}")
    assert len(recorded.spans()) == trace.CAPACITY
    assert not recorded.spans("pv/9x")


async def test_two_clusters_in_one_process_have_traces_of_their_own() -> None:
    async def cluster(name: str) -> Trace:
        own = trace.start()
        await asyncio.sleep(0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(step(f"pv/{name}"))
        return own

    async def step(subject: str) -> None:
        with trace.span("binder", "bind", subject):
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as both:
        one, two = both.create_task(cluster("one")), both.create_task(cluster("two"))
    assert [span.subject for span in one.result().spans()] == ["pv/one"]
    assert [span.subject for span in two.result().spans()] == ["pv/two"]


def test_a_span_can_belong_to_a_trace_that_is_not_the_current_one(recorded: Trace) -> None:
    other = Trace()
    with other.span("apiserver", "create", "pvc/default/a"):
        pass
    assert len(other.spans()) == 1
    assert not recorded.spans()


def test_without_a_trace_nothing_is_recorded() -> None:
    def mark() -> Trace | None:
        trace.mark("c", "s", "pv/1")
        return trace.current()

    assert Context().run(mark) is None
