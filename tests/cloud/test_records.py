"""The disk service's records: small in memory, and what is shown before it is stored."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from volplane.cloud import records as keeping
from volplane.cloud.model import AttachmentState, CloudAttachment, CloudVolume, VolumeShape, VolumeState
from volplane.cloud.records import EVENT_WINDOW, CloudRecords
from volplane.store import StoreFull
from volplane.store.memory import MemoryStore
from volplane.store.sqlite import SqliteStore

ROUNDS, OFTEN = 30, 21  # odd, so that its turn comes at a drop, and then at a put


async def test_volumes_that_came_and_went_leave_no_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "COMPACT_INTERVAL", OFTEN)
    store = await SqliteStore.open(tmp_path / "state.db", window=EVENT_WINDOW)
    records = CloudRecords(store)
    kept = CloudVolume("vol-kept", "us-east-1a", VolumeShape(1), VolumeState.AVAILABLE)
    await records.put_volume(kept)
    for number in range(ROUNDS):
        passing = CloudVolume(
            f"vol-{number}", "us-east-1a", VolumeShape(1), VolumeState.AVAILABLE, token=str(number)
        )
        await records.put_volume(passing)
        assert store.revision - store.floor <= OFTEN
        await records.delete_volume(passing)
        assert store.revision - store.floor <= OFTEN
    assert store.revision == 1 + 2 * ROUNDS
    assert (store.scan(""), records.tokens, records.granted) == (
        [store.peek("/cloud/volumes/vol-kept")],
        {},
        1,
    )
    await store.close()

    store = await SqliteStore.open(tmp_path / "state.db", window=EVENT_WINDOW)
    again = CloudRecords(store)
    await again.load()
    assert again.volumes == {"vol-kept": kept}
    await store.close()


async def test_a_result_is_shown_at_once_and_stored_before_the_next_write_of_its_volume(
    tmp_path: Path,
) -> None:
    store = await SqliteStore.open(tmp_path / "state.db", window=EVENT_WINDOW)
    records = CloudRecords(store)
    volume = CloudVolume("vol-1", "us-east-1a", VolumeShape(1), VolumeState.IN_USE)
    await records.put_volume(volume)
    free, leaving = replace(volume, state=VolumeState.AVAILABLE), replace(volume, state=VolumeState.DELETING)
    records.put_volume_later(free)
    assert (records.volumes["vol-1"], store.revision) == (free, 1)
    await records.put_volume(leaving)
    assert (records.volumes["vol-1"], store.revision) == (leaving, 3)
    records.put_volume_later(free)
    await records.flush()
    assert store.revision == 4
    records.put_volume_later(leaving)
    await records.delete_volume(leaving)
    assert (records.volumes, store.scan("")) == ({}, [])
    await store.close()


async def test_a_result_that_cannot_be_stored_is_shown_nevertheless(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FailingStore()
    records = CloudRecords(store)
    volume = CloudVolume("vol-1", "us-east-1a", VolumeShape(1), VolumeState.IN_USE)
    await records.put_volume(volume)
    store.is_full = True
    free = replace(volume, state=VolumeState.AVAILABLE)
    records.put_volume_later(free)
    await records.flush()
    assert records.volumes["vol-1"] == free
    assert "the result of an operation is not stored (no space left); a restart repeats it" in caplog.text
    store.is_full = False
    await records.put_volume(free)  # the revision that is stored is still known


async def test_a_volume_that_is_only_shown_leaves_nothing_in_the_store() -> None:
    store = MemoryStore()
    records = CloudRecords(store)
    volume = CloudVolume("vol-1", "us-east-1a", VolumeShape(1), VolumeState.CREATING)
    records.show_volume(volume)
    assert records.volumes["vol-1"] == volume
    assert records.is_new  # what is only shown would be lost
    await records.delete_volume(volume)
    assert (records.volumes, records.granted, store.revision) == ({}, 0, 0)


async def test_an_attachment_that_an_earlier_version_stored_is_kept() -> None:
    store = MemoryStore()
    await store.create(
        "/cloud/volumes/vol-1",
        b'{"id":"vol-1","zone":"us-east-1a","shape":{"size":1},"state":"in-use","used":true,'
        b'"attachment":{"instance":"i-1","device":"/dev/xvdba","state":"attached"}}',
    )
    records = CloudRecords(store)
    await records.load()
    held = CloudAttachment("i-1", "/dev/xvdba", AttachmentState.ATTACHED)
    assert records.volumes["vol-1"].attachments == (held,)
    await records.put_volume(records.volumes["vol-1"])
    again = CloudRecords(store)
    await again.load()
    assert again.volumes == records.volumes
    assert [v.id for v in again.attached_to("i-1")] == ["vol-1"]


class FailingStore(MemoryStore):
    """A store whose disk can be full."""

    is_full = False

    async def update(self, key: str, value: bytes, *, revision: int) -> int:
        if self.is_full:
            raise StoreFull("no space left")
        return await super().update(key, value, revision=revision)
