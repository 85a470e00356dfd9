"""Records that are hardly read take less memory, and nobody who reads them can tell."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from volplane.store import Record
from volplane.store.packing import Packing
from volplane.store.sqlite import SqliteStore
from volplane.store.state import State

PREFIX = "/registry/events/"


def event(number: int) -> bytes:
    return b'{"reason":"Started","message":"Started container %d"%b}' % (number, b',"padding":"alike"' * 30)


def state(*, window: int) -> State:
    return State(max_events=window, packed=(PREFIX,))


@given(st.lists(st.binary(max_size=4000), min_size=1, max_size=8))
def test_any_value_comes_back_as_it_was(values: list[bytes]) -> None:
    packing = Packing((PREFIX,))
    records = [Record(f"{PREFIX}{i}", value, 2**40 + i, i + 1) for i, value in enumerate(values)]
    packed = [packing.pack(record) for record in records]
    assert [packing.unpack(r.key, p) for r, p in zip(records, packed, strict=True)] == records


def test_values_of_several_kinds_are_each_kept_small() -> None:
    packing = Packing((PREFIX,))
    kinds = [bytes((97 + (kind * 7 + at * at) % 26) for at in range(500)) for kind in range(6)]
    values = [b"%d%b%d" % (number, kinds[number % 6], number) for number in range(60)]
    packed = [len(packing.pack(Record(PREFIX, value, at, at))) for at, value in enumerate(values, 1)]
    assert max(packed[6:]) < 60  # of more than five hundred


def test_what_has_left_the_window_is_small_and_reads_the_same() -> None:
    packed, plain = state(window=2), State(max_events=2)
    for number in range(50):
        for held in (packed, plain):
            held.put(f"{PREFIX}{number:02}", event(number))
            held.put(f"/registry/pods/{number:02}", event(number))
    assert packed.scan("") == plain.scan("")
    assert packed.peek(f"{PREFIX}07") == plain.peek(f"{PREFIX}07")
    now = {"limit": 3, "revision": packed.revision}
    page = packed.page(PREFIX, after=f"{PREFIX}10", **now)
    assert page == plain.page(PREFIX, after=f"{PREFIX}10", **now)
    assert size_of(packed) < size_of(plain) * 0.7


def test_a_packed_record_is_changed_and_deleted_like_any_other() -> None:
    held = state(window=1)
    for number in range(3):
        held.put(f"{PREFIX}{number}", event(number))
    changed = held.put(f"{PREFIX}0", b"changed")
    assert changed.previous == Record(f"{PREFIX}0", event(0), 1, 1)
    assert changed.record == Record(f"{PREFIX}0", b"changed", 4, 1)
    assert held.at(f"{PREFIX}0", 3) == changed.previous
    assert held.drop(f"{PREFIX}1").previous == Record(f"{PREFIX}1", event(1), 2, 2)
    assert held.peek(f"{PREFIX}1") is None
    held.put(f"{PREFIX}9", event(9))  # the deleted one leaves the window, too
    assert [record.value for record in held.scan(PREFIX)] == [b"changed", event(2), event(9)]


async def test_a_store_that_is_opened_again_packs_what_it_finds(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "state.db", packed=(PREFIX,))
    for number in range(5):
        await store.create(f"{PREFIX}{number}", event(number))
    before = store.scan("")
    await store.close()
    store = await SqliteStore.open(tmp_path / "state.db", packed=(PREFIX,))
    try:
        assert store.scan("") == before
        assert await store.update(f"{PREFIX}3", b"x", revision=4) == 6
        assert (await store.delete(f"{PREFIX}4")).previous == before[4]
    finally:
        await store.close()


def size_of(held: State) -> int:
    kept = held._records.values()
    return sum(sys.getsizeof(k if isinstance(k, bytes) else k.value) for k in kept)
