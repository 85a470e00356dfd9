"""Rarely read records take less memory, and read the same."""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volplane.store import StoreRecord
from volplane.store import state as module
from volplane.store.compressed_records import (
    ARENA_SIZE,
    BLOCK_RECORDS,
    SORTED_TOGETHER,
    CompressedBlock,
    RecordArena,
    unpack,
)
from volplane.store.sqlite import SqliteStore
from volplane.store.state import StoreState

PREFIX = "/registry/events/"


def event(number: int) -> bytes:
    return b'{"reason":"Started","message":"Started container %d"%b}' % (number, b',"padding":"alike"' * 30)


def state(*, window: int) -> StoreState:
    return StoreState(max_events=window, compressed_prefixes=(PREFIX,))


@given(st.lists(st.binary(max_size=4000), min_size=1, max_size=80))
def test_any_value_comes_back_as_it_was(values: list[bytes]) -> None:
    records = [StoreRecord(f"{PREFIX}{i}", value, 2**40 + i, i + 1) for i, value in enumerate(values)]
    opened = [
        record
        for some, block in RecordArena().compress(records)
        for record in unpack(block)
        if record in some
    ]
    assert sorted(opened, key=lambda record: record.created) == records


def test_what_has_left_the_window_is_small_and_reads_the_same() -> None:
    packed, plain = state(window=2), StoreState(max_events=2)
    for number in range(2 * SORTED_TOGETHER):
        for held in (packed, plain):
            held.put(f"{PREFIX}{number:03}", event(number))
            held.put(f"/registry/pods/{number:03}", b"as it is")
    assert packed.scan("") == plain.scan("")
    assert packed.peek(f"{PREFIX}007") == plain.peek(f"{PREFIX}007")
    now = {"limit": 30, "revision": packed.revision}
    page = packed.page(PREFIX, after=f"{PREFIX}010", **now)
    assert page == plain.page(PREFIX, after=f"{PREFIX}010", **now)
    waiting = (SORTED_TOGETHER + 2) / (2 * SORTED_TOGETHER)
    assert size_of(packed) < size_of(plain) * (waiting + 0.05)


def test_an_arena_is_freed_with_its_last_block() -> None:
    arenas = RecordArena()
    large = [
        StoreRecord(f"{PREFIX}{n}", os.urandom(ARENA_SIZE // BLOCK_RECORDS // 3), n, n)
        for n in range(4 * BLOCK_RECORDS)
    ]
    one, two, three, other = (block for _, block in arenas.compress(large))
    arena = weakref.ref(one.obj)
    assert one.obj is two.obj
    assert other.obj is not one.obj
    assert [r.key for r in unpack(three)] == sorted(r.key for r in large)[
        2 * BLOCK_RECORDS : 3 * BLOCK_RECORDS
    ]
    del one, three
    assert arena() is not None
    del two
    assert arena() is None


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=400), st.integers(1, 6))
@settings(max_examples=50)
def test_whatever_is_written_and_deleted_reads_as_if_nothing_were_packed(
    writes: list[tuple[int, bool]], waiting: int
) -> None:
    packed, plain = state(window=3), StoreState(max_events=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SORTED_TOGETHER", waiting)
        for number, stays in writes:
            key = f"{PREFIX}{number}"
            for held in (packed, plain):
                if stays or held.peek(key) is None:
                    held.put(key, b"%d" % held.revision)
                else:
                    held.drop(key)
            now: dict[str, Any] = {
                "after": "",
                "limit": 9,
                "revision": max(packed.revision - 2, packed.horizon),
            }
            assert packed.page(PREFIX, **now) == plain.page(PREFIX, **now)
    assert packed.scan("") == plain.scan("")
    assert [packed.peek(r.key) for r in plain.scan("")] == plain.scan("")


def test_a_packed_record_is_changed_and_deleted_like_any_other() -> None:
    held = state(window=1)
    for number in range(SORTED_TOGETHER + 1):
        held.put(f"{PREFIX}{number:03}", event(number))
    changed = held.put(f"{PREFIX}000", b"changed")
    assert changed.previous == StoreRecord(f"{PREFIX}000", event(0), 1, 1)
    assert changed.record == StoreRecord(f"{PREFIX}000", b"changed", SORTED_TOGETHER + 2, 1)
    assert held.at(f"{PREFIX}000", SORTED_TOGETHER + 1) == changed.previous
    assert held.drop(f"{PREFIX}001").previous == StoreRecord(f"{PREFIX}001", event(1), 2, 2)
    assert held.peek(f"{PREFIX}001") is None
    held.put(f"{PREFIX}999", event(999))  # the deleted one leaves the window, too
    values = [record.value for record in held.scan(PREFIX)]
    assert (values[0], values[1], values[-1]) == (b"changed", event(2), event(999))


async def test_a_store_that_is_opened_again_packs_what_it_finds(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "state.db", compressed_prefixes=(PREFIX,))
    for number in range(5):
        await store.create(f"{PREFIX}{number}", event(number))
    before = store.scan("")
    await store.close()
    store = await SqliteStore.open(tmp_path / "state.db", compressed_prefixes=(PREFIX,))
    try:
        assert store.scan("") == before
        assert await store.update(f"{PREFIX}3", b"x", revision=4) == 6
        assert (await store.delete(f"{PREFIX}4")).previous == before[4]
    finally:
        await store.close()


def size_of(held: StoreState) -> int:
    kept = {id(k): bytes(k) if isinstance(k, CompressedBlock) else k.value for k in held._records.values()}
    return sum(map(sys.getsizeof, kept.values()))
