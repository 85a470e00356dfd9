"""A view is rendered when something has changed, and each viewer gets what it does not have yet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from volplane.base import clock
from volplane.base.markup import Markup, tag
from volplane.dashboard.fragments import ROOT, Fragments, assemble, slot
from volplane.dashboard.live_view import SHORTEST_PAUSE, LiveView, View


class Counters(View):
    """A view of numbers by name."""

    title = "Counters"

    def __init__(self, **numbers: int) -> None:
        super().__init__()
        self.numbers = numbers
        self.renderings: list[float] = []
        self.wake: Callable[[], None] = lambda: None
        self.is_open = False

    async def open(self, wake: Callable[[], None]) -> None:
        self.wake, self.is_open = wake, True

    async def render(self) -> Fragments:
        self.renderings.append(clock.now())
        parts = {name: tag("p", number, id=name) for name, number in self.numbers.items()}
        return {ROOT: tag("div", *map(slot, parts), id=ROOT), **parts}

    def close(self) -> None:
        self.is_open = False

    def set(self, **numbers: int) -> None:
        self.numbers |= numbers
        self.wake()


@asynccontextmanager
async def opened(view: Counters) -> AsyncIterator[LiveView]:
    live = LiveView(view)
    await live.open()
    try:
        yield live
    finally:
        await live.close()


@asynccontextmanager
async def watching(live: LiveView, version: str) -> AsyncIterator[AsyncGenerator[bytes, None]]:
    stream = cast("AsyncGenerator[bytes, None]", live.stream(version))
    assert await anext(stream) == b"retry: 1000\n\n"
    try:
        yield stream
    finally:
        await stream.aclose()


def read(event: bytes) -> tuple[str, dict[str, str]]:
    lines = event.decode().splitlines()
    fields = dict(line.partition(": ")[::2] for line in lines if line)
    assert fields["event"] == "fragments"
    return fields["id"], json.loads(fields["data"])


@pytest.mark.virtual
async def test_only_what_has_changed_is_sent() -> None:
    view = Counters(a=1, b=1)
    async with opened(view) as live, watching(live, live.version) as stream:
        view.set(b=2)
        version, changed = read(await anext(stream))
        assert changed == {"b": '<p id="b">2</p>'}
        assert version == live.version


@pytest.mark.virtual
async def test_a_new_fragment_is_sent_with_the_one_that_has_its_slot() -> None:
    view = Counters(a=1)
    async with opened(view) as live, watching(live, live.version) as stream:
        view.set(b=7)
        _, changed = read(await anext(stream))
        assert changed.keys() == {ROOT, "b"}


@pytest.mark.virtual
async def test_a_browser_that_was_away_gets_what_it_missed() -> None:
    view = Counters(a=1, b=1, c=1)
    async with opened(view) as live:
        had = live.version
        view.set(b=2)
        await asyncio.sleep(1)
        view.set(c=2)
        await asyncio.sleep(1)
        async with watching(live, had) as stream:
            assert read(await anext(stream))[1].keys() == {"b", "c"}


@pytest.mark.virtual
@pytest.mark.parametrize("version", ["", "1", "ffffffff-1", "x-y", "-"])
async def test_a_browser_with_another_lifes_version_gets_everything(version: str) -> None:
    async with opened(Counters(a=1, b=1)) as live, watching(live, version) as stream:
        assert read(await anext(stream))[1].keys() == {ROOT, "a", "b"}


@pytest.mark.virtual
async def test_many_changes_are_a_few_renderings_and_the_last_state_is_shown() -> None:
    view = Counters(a=0)
    async with opened(view) as live:
        began = clock.now()
        for number in range(1, 1001):
            view.set(a=number)
            await asyncio.sleep(0.001)
        await asyncio.sleep(2 * SHORTEST_PAUSE)
        assert len(view.renderings) <= (clock.now() - began) / SHORTEST_PAUSE + 1
        assert '<p id="a">1000</p>' in live.html


@pytest.mark.virtual
async def test_nothing_is_rendered_while_nothing_changes() -> None:
    view = Counters(a=1)
    async with opened(view) as live, watching(live, live.version):
        await asyncio.sleep(3600)
        assert len(view.renderings) == 1


@pytest.mark.virtual
async def test_a_change_that_is_not_seen_sends_nothing() -> None:
    view = Counters(a=1)
    async with opened(view) as live, watching(live, live.version) as stream:
        view.set(a=1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 10)
        assert len(view.renderings) == 2


@pytest.mark.virtual
async def test_a_view_that_could_not_be_rendered_is_rendered_after_the_next_change() -> None:
    view = Counters(a=1)
    async with opened(view) as live, watching(live, live.version) as stream:
        numbers, view.numbers = view.numbers, cast("dict[str, int]", None)
        view.wake()
        await asyncio.sleep(1)
        view.numbers = numbers
        view.set(a=2)
        assert read(await anext(stream))[1] == {"a": '<p id="a">2</p>'}


@pytest.mark.virtual
async def test_viewers_are_counted() -> None:
    async with opened(Counters(a=1)) as live:
        async with watching(live, live.version), watching(live, live.version):
            assert live.viewers == 2
        assert live.viewers == 0


def test_fragments_are_put_into_their_slots() -> None:
    fragments = {
        ROOT: tag("div", slot("a"), slot("b"), id=ROOT),
        "a": tag("p", slot("c"), id="a"),
        "b": tag("p", '<live-slot ref="c"></live-slot>', id="b"),
        "c": tag("i", "c", id="c"),
    }
    assert assemble(fragments) == (
        '<div id="view"><p id="a"><i id="c">c</i></p>'
        '<p id="b">&lt;live-slot ref=&quot;c&quot;&gt;&lt;/live-slot&gt;</p></div>'
    )
    assert isinstance(assemble(fragments), Markup)
