"""The disk service's memory stays small, however often disks come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from volplane.cloud import records as keeping
from volplane.cloud.model import CloudVolume, VolumeShape, VolumeState
from volplane.cloud.records import EVENT_WINDOW, CloudRecords
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
