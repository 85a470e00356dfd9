"""The feed of recorded steps: from files that grow, and from the memory of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from volplane.base import trace
from volplane.base.span_store import SpanRecorder, StoredSpan
from volplane.base.trace import Trace
from volplane.dashboard import span_feed
from volplane.dashboard.span_feed import NoSpans, RecordedSpans, SpanFeed, SpansInMemory, open_feed

A = "a" * 32
PATIENCE = 30.0


def new_trace() -> Trace:
    made = trace.start()
    made.index.learn("pvc/default/a", (A,))
    return made


class Inbox:
    """What a subscriber got."""

    def __init__(self, feed: SpanFeed) -> None:
        self.steps: list[str] = []
        self._arrived = asyncio.Event()
        self.end = feed.subscribe(self._take)

    def _take(self, spans: Sequence[StoredSpan]) -> None:
        self.steps += [stored.span.step for stored in spans]
        self._arrived.set()

    async def wait_for(self, *steps: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.steps != list(steps):
                self._arrived.clear()
                await self._arrived.wait()


async def test_steps_that_a_file_gets_are_handed_on(tmp_path: Path) -> None:
    made = new_trace()
    made.sinks.append(SpanRecorder(tmp_path, "up", max_size=1 << 20, max_age=60.0).write)
    with trace.span("binder", "before", "pvc/default/a"):
        pass
    feed = RecordedSpans(tmp_path)
    await feed.open()
    try:
        inbox = Inbox(feed)
        with trace.span("binder", "after", "pvc/default/a"):
            pass
        await inbox.wait_for("after")
        assert [s.span.step for s in await feed.search([A])] == ["before", "after"]
        assert feed.since is None
    finally:
        await feed.close()


async def test_a_step_is_handed_on_when_it_begins_and_when_it_ends(tmp_path: Path) -> None:
    made = new_trace()
    made.sinks.append(SpanRecorder(tmp_path, "up", max_size=1 << 20, max_age=60.0).write)
    feed = RecordedSpans(tmp_path)
    await feed.open()
    try:
        inbox = Inbox(feed)
        with trace.span("csi-attacher", "ControllerPublishVolume", "pvc/default/a") as call:
            call.announce()
            await inbox.wait_for("ControllerPublishVolume")
        await inbox.wait_for("ControllerPublishVolume", "ControllerPublishVolume")
    finally:
        await feed.close()


async def test_memory_has_the_steps_since_the_feed_was_opened() -> None:
    made = new_trace()
    with trace.span("binder", "before", "pvc/default/a"):
        pass
    feed = SpansInMemory(made)
    assert not made.is_recording
    await feed.open()
    assert made.is_recording
    inbox = Inbox(feed)
    with trace.span("binder", "after", "pvc/default/a"):
        pass
    await inbox.wait_for("after")
    assert [s.span.step for s in await feed.search([A])] == ["after"]
    assert feed.since is not None
    await feed.close()
    assert not made.is_recording  # recording costs nothing any more
    assert await feed.search([A]) == []


async def test_steps_of_threads_are_kept_too() -> None:
    made = new_trace()
    feed = SpansInMemory(made)
    await feed.open()
    try:
        inbox = Inbox(feed)
        thread = threading.Thread(
            target=lambda: made.append("host", "mkfs", "pvc/default/a", 1, 2, {}, "", (A,), "x", "")
        )
        thread.start()
        await inbox.wait_for("mkfs")
        thread.join()
    finally:
        await feed.close()


async def test_memory_is_bounded_and_the_page_knows_since_when_it_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(span_feed, "MEMORY", 2_000)
    made = new_trace()
    feed = SpansInMemory(made)
    await feed.open()
    try:
        opened = feed.since
        for number in range(100):
            with trace.span("binder", f"step {number}", "pvc/default/a"):
                pass
        await asyncio.sleep(0)
        kept = await feed.search([A])
        assert 2 <= len(kept) < 20
        assert kept[-1].span.step == "step 99"
        assert opened is not None
        assert feed.since is not None
        assert feed.since > opened
    finally:
        await feed.close()


async def test_a_subscriber_that_left_gets_nothing() -> None:
    made = new_trace()
    feed = SpansInMemory(made)
    await feed.open()
    try:
        gone, here = Inbox(feed), Inbox(feed)
        gone.end()
        gone.end()
        with trace.span("binder", "bind", "pvc/default/a"):
            pass
        await here.wait_for("bind")
        assert gone.steps == []
    finally:
        await feed.close()


def test_the_feed_is_chosen_by_what_is_recorded(tmp_path: Path) -> None:
    assert isinstance(open_feed(tmp_path, None), RecordedSpans)
    assert isinstance(open_feed(tmp_path, Trace()), SpansInMemory)
    assert isinstance(open_feed(tmp_path / "none", None), NoSpans)
    assert isinstance(open_feed(None, None), NoSpans)
