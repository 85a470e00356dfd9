"""Spans are kept in one bounded ring."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from volplane.base import trace


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    trace.clear()
    yield
    trace.clear()


async def test_spans_come_in_the_order_of_their_beginning() -> None:
    with trace.span("provisioner", "CreateVolume", "pvc/default/a", size=1):
        async with trace.span("ebs", "wait", "pvc/default/a"):
            trace.mark("cloud", "disk", "pvc/default/a")
    spans = trace.spans("pvc/default/")
    assert [s.step for s in spans] == ["CreateVolume", "wait", "disk"]
    assert spans[0].start <= spans[1].start <= spans[1].end <= spans[0].end
    assert spans[0].attrs == {"size": 1}
    assert spans[2].start == spans[2].end


def test_a_span_that_failed_says_why() -> None:
    with pytest.raises(OSError, match="full"), trace.span("node", "mount", "pod/default/x"):
        raise OSError("full")
    assert trace.spans("pod/")[0].error == "OSError: full"


def test_a_failure_may_name_a_file_that_has_no_proper_name() -> None:
    with pytest.raises(OSError, match="odd"), trace.span("node", "mount", "pod/default/x"):
        raise OSError("odd \udcff")
    assert trace.spans("pod/")[0].error == "OSError: odd \\udcff"


def test_a_mount_may_have_no_proper_name() -> None:
    with trace.span("host", "mount", "/odd-\udcff", at="\udcfe"):
        pass
    (found,) = trace.spans("/odd-")
    assert (found.subject, found.attrs) == ("/odd-\\udcff", {"at": "\\udcfe"})


def test_the_ring_is_bounded() -> None:
    for number in range(trace.CAPACITY + 10):
        trace.mark("c", "s", f"pv/{number}")
    assert len(trace.spans()) == trace.CAPACITY
    assert not trace.spans("pv/9x")
