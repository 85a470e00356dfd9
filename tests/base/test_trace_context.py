"""The trace of a claim, and the header that carries it."""

from __future__ import annotations

import pytest

from volplane.base import trace_context
from volplane.base.trace_context import TraceIndex, parse_traceparent, root_span_id, trace_id

UID = "0d4b2a0e-6f5c-4b34-9d0e-3d1f0c2b7a11"
TRACE = "0d4b2a0e6f5c4b349d0e3d1f0c2b7a11"


def test_the_trace_of_a_claim_is_its_uid() -> None:
    assert trace_id(UID) == trace_id(UID.upper()) == TRACE


def test_a_uid_of_another_form_has_a_trace_too() -> None:
    assert len(trace_id("not-a-uuid")) == 32
    assert trace_id("not-a-uuid") == trace_id("not-a-uuid") != trace_id("another")
    assert trace_id("") == ""


def test_the_first_span_of_a_trace_is_known_to_all() -> None:
    assert len(root_span_id(TRACE)) == 16
    assert root_span_id(TRACE) == root_span_id(TRACE)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{TRACE}-00f067aa0ba902b7",
        f"ff-{TRACE}-00f067aa0ba902b7-01",
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-00f067aa0ba902b7-01",
        f"00-{TRACE}-00f067aa0ba902b7-01-more",
    ],
)
def test_an_invalid_header_is_ignored(header: str) -> None:
    assert parse_traceparent(header) is None


@pytest.mark.parametrize("version", ["00", "01"])
def test_a_header_of_this_or_a_later_version_is_read(version: str) -> None:
    more = "-more" if version == "01" else ""
    found = parse_traceparent(f"{version}-{TRACE}-00f067aa0ba902b7-00{more}")
    assert found == ((TRACE,), "00f067aa0ba902b7")


def test_subjects_lead_to_traces_in_whichever_order_they_are_learned() -> None:
    index = TraceIndex()
    index.learn("va/x", ("pv/static",))
    assert index.find("va/x") == ()
    index.learn("pv/static", (TRACE,))
    index.learn("pod/default/web", ("pvc/default/a", "pvc/default/b"))
    index.learn("pvc/default/a", (TRACE,))
    index.learn("pvc/default/b", ("b" * 32,))
    assert index.find("va/x") == (TRACE,)
    assert index.find("pod/default/web") == (TRACE, "b" * 32)


def test_a_provisioned_volume_has_its_claim_in_its_name() -> None:
    index = TraceIndex()
    assert index.find(f"pv/pvc-{UID}") == index.find(f"volume/pvc-{UID}") == (TRACE,)
    assert index.find("pv/pvc-other") == ()


def test_the_oldest_subjects_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_context, "CAPACITY", 3)
    index = TraceIndex()
    for number in range(5):
        index.learn(f"pv/{number}", (TRACE,))
    assert [bool(index.find(f"pv/{number}")) for number in range(5)] == [False, False, True, True, True]


def test_subjects_that_refer_to_each_other_end() -> None:
    index = TraceIndex()
    index.learn("pv/a", ("pv/b",))
    index.learn("pv/b", ("pv/a",))
    assert index.find("pv/a") == ()
