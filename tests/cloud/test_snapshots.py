"""Snapshots and copies on real files are consistent, whatever is written or killed meanwhile."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from volplane.cloud import CloudInstance, CloudOptions, DiskService, open_service
from volplane.cloud import snapshots as snapshots_room
from volplane.cloud.create_volume import CloudVolumeRequest
from volplane.cloud.errors import Ec2ErrorResponse
from volplane.cloud.model import (
    CloudModification,
    CloudSnapshot,
    CloudVolume,
    SnapshotState,
    VolumeShape,
    VolumeState,
)
from volplane.cloud.plan import DeleteDisk, FinishCopy, MarkLost, Step, plan, plan_snapshot
from volplane.host import Host, copies
from volplane.store.memory import MemoryStore

pytestmark = pytest.mark.root

ZONE = "us-east-1a"
REQUEST = CloudVolumeRequest(zone=ZONE, shape=VolumeShape(1, "gp3"))
GIB = 1 << 30


@asynccontextmanager
async def cloud(directory: Path, store: MemoryStore | None = None) -> AsyncIterator[DiskService]:
    host = Host()
    node = CloudInstance("i-1", ZONE, str(directory / "n1"))
    settings = CloudOptions(data_dir=str(directory), access_key="a", secret_key="s", instances=(node,))
    try:
        async with open_service(settings, host, store or MemoryStore()) as service:
            yield service
    finally:
        await host.close()


async def assert_refused(code: str, call: object) -> str:
    with pytest.raises(Ec2ErrorResponse) as caught:
        await call  # type: ignore[misc]
    assert caught.value.code == code
    return caught.value.message


async def wait_until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def put(path: str | Path, place: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR)
    os.pwrite(descriptor, data, place)
    os.fsync(descriptor)
    os.close(descriptor)


def get(path: str | Path, place: int, length: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, length, place)
    finally:
        os.close(descriptor)


async def test_a_snapshot_keeps_what_was_there_and_a_volume_comes_out_of_it(tmp_path: Path) -> None:
    async with cloud(tmp_path) as service:
        volume = await service.create(REQUEST)
        await service.attach(volume.id, "i-1", "/dev/xvdba")
        device = tmp_path / "n1" / "xvdba"
        put(device, GIB - 4096, b"before")
        snapshot = await service.snapshots.create(volume.id, description="d", tags={"a": "b"})
        put(device, GIB - 4096, b"after!")
        assert (snapshot.state, snapshot.size) == (SnapshotState.COMPLETED, 1)
        file = tmp_path / "snapshots" / f"{snapshot.id}.img"
        assert get(file, GIB - 4096, 6) == b"before"
        assert 0 < file.stat().st_blocks * 512 < 1 << 20  # holes stay holes
        larger = CloudVolumeRequest(zone=ZONE, shape=VolumeShape(2, "gp3"), snapshot=snapshot.id)
        restored = await service.create(larger)
        assert (restored.state, restored.shape.size) == (VolumeState.AVAILABLE, 2)
        path = tmp_path / "disks" / f"{restored.id}.img"
        assert path.stat().st_size == 2 * GIB
        assert get(path, GIB - 4096, 6) == b"before"
        await service.snapshots.delete(snapshot.id)
        assert not file.exists()
        assert get(path, GIB - 4096, 6) == b"before"
        await assert_refused("InvalidSnapshot.NotFound", service.snapshots.delete(snapshot.id))
        await assert_refused("InvalidSnapshot.NotFound", service.create(larger))


async def test_a_copy_of_a_volume(tmp_path: Path) -> None:
    async with cloud(tmp_path) as service:
        volume = await service.create(REQUEST)
        put(tmp_path / "disks" / f"{volume.id}.img", 8192, b"mine")
        copy = await service.create(
            CloudVolumeRequest(zone=ZONE, shape=VolumeShape(0, "gp3"), source=volume.id)
        )
        await service.delete(volume.id)
        assert copy.shape.size == 1
        assert get(tmp_path / "disks" / f"{copy.id}.img", 8192, 4) == b"mine"


async def test_what_cannot_be_copied_is_refused(tmp_path: Path) -> None:
    async with cloud(tmp_path) as service:
        volume = await service.create(CloudVolumeRequest(zone=ZONE, shape=VolumeShape(2, "gp3")))
        snapshot = await service.snapshots.create(volume.id, tags={})
        small = CloudVolumeRequest(zone=ZONE, shape=VolumeShape(1, "gp3"), snapshot=snapshot.id)
        assert "smaller" in await assert_refused("InvalidParameterValue", service.create(small))
        await assert_refused("InvalidVolume.NotFound", service.snapshots.create("vol-0", tags={}))
        await service.snapshots.fail(snapshot, "broken")
        await assert_refused(
            "IncorrectState",
            service.create(CloudVolumeRequest(ZONE, VolumeShape(2, "gp3"), snapshot=snapshot.id)),
        )
        assert os.listdir(tmp_path / "snapshots") == []


@contextmanager
def writing(device: Path) -> Iterator[None]:
    """Two places of a disk get the same number, the first one first, over and over."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            data = number.to_bytes(8, "big") * 512
            put(device, 0, data)
            put(device, 512 << 20, data)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


async def test_a_raw_disk_that_never_stands_still_is_refused_rather_than_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cloud(tmp_path) as service:
        volume = await service.create(REQUEST)
        await service.attach(volume.id, "i-1", "/dev/xvdba")
        # Between two looks at the counters there is a write, however fast the copy is.
        looks = iter(range(1000))
        monkeypatch.setattr(copies, "read_write_counters", lambda device: (next(looks), 0))
        monkeypatch.setattr(copies, "reflink", lambda old, new: False)
        await assert_refused("IncorrectState", service.snapshots.create(volume.id, tags={}))
        assert service.records.snapshots == {}
        assert os.listdir(tmp_path / "snapshots") == []
        monkeypatch.undo()
        with writing(tmp_path / "n1" / "xvdba"):
            taken = 0
            for _ in range(20):
                try:
                    snapshot = await service.snapshots.create(volume.id, tags={})
                except Ec2ErrorResponse:
                    continue
                taken += 1
                file = tmp_path / "snapshots" / f"{snapshot.id}.img"
                first, second = get(file, 0, 8), get(file, 512 << 20, 8)
                behind = int.from_bytes(first, "big") - int.from_bytes(second, "big")
                assert behind in (0, 1)
        assert taken or not service.disks.shares


async def test_a_busy_file_system_is_held_still_and_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, target = Host(), tmp_path / "mnt"
    target.mkdir()
    async with cloud(tmp_path) as service:
        volume = await service.create(REQUEST)
        await service.attach(volume.id, "i-1", "/dev/xvdba")
        device = os.path.realpath(tmp_path / "n1" / "xvdba")  # noqa: ASYNC240
        await host.mkfs(device, "ext4")
        await host.mount(device, str(target), "ext4")
        try:
            (target / "note").write_bytes(b"not synced by its writer")
            looks = iter(range(1000))
            monkeypatch.setattr(copies, "read_write_counters", lambda device: (next(looks), 0))
            monkeypatch.setattr(copies, "reflink", lambda old, new: False)
            snapshot = await service.snapshots.create(volume.id, tags={})
            (target / "later").write_bytes(b"x")
            assert not await host.call(copies.thaw, str(target))
        finally:
            await host.unmount(str(target))
        monkeypatch.undo()
        copy = await service.create(CloudVolumeRequest(ZONE, VolumeShape(1, "gp3"), snapshot=snapshot.id))
        await service.attach(copy.id, "i-1", "/dev/xvdbb")
        await host.mount(os.path.realpath(tmp_path / "n1" / "xvdbb"), str(target), "ext4", ["ro"])  # noqa: ASYNC240
        try:
            assert sorted(p.name for p in target.iterdir()) == ["lost+found", "note"]
            assert (target / "note").read_bytes() == b"not synced by its writer"
        finally:
            await host.unmount(str(target))
    await host.close()


async def test_a_long_copy_answers_pending_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("volplane.cloud.service.REQUEST_PATIENCE", 0.0)
    monkeypatch.setattr("volplane.cloud.create_volume.REQUEST_PATIENCE", 0.0)
    go, copy = threading.Event(), copies.copy

    def slow(source: str, target: str, *, report: copies.ProgressCallback = lambda percent: None) -> bool:
        report(42)
        assert go.wait(60)
        return copy(source, target, report=report)

    async with cloud(tmp_path) as service:
        volume = await service.create(REQUEST)
        await wait_until(lambda: service.volume(volume.id).state is VolumeState.AVAILABLE)
        monkeypatch.setattr(copies, "copy", slow)
        snapshot = await service.snapshots.create(volume.id, tags={})
        assert snapshot.state is SnapshotState.PENDING
        await assert_refused(
            "IncorrectState",
            service.create(CloudVolumeRequest(ZONE, VolumeShape(0, "gp3"), snapshot=snapshot.id)),
        )
        await wait_until(lambda: service.snapshots.progress(snapshot) == 42)
        deleting = asyncio.create_task(service.delete(volume.id))
        await asyncio.sleep(0.05)
        assert not deleting.done()  # its file is still being read
        go.set()
        await deleting
        # The source may be deleted as soon as it is read; the snapshot's record is written after that.
        await wait_until(lambda: service.snapshots.get(snapshot.id).state is SnapshotState.COMPLETED)
        restored = await service.create(CloudVolumeRequest(ZONE, VolumeShape(0, "gp3"), snapshot=snapshot.id))
        assert restored.state is VolumeState.CREATING
        await wait_until(lambda: service.volume(restored.id).state is VolumeState.AVAILABLE)


async def test_a_full_machine_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cloud(tmp_path) as service:
        volume = await service.create(REQUEST)
        put(tmp_path / "disks" / f"{volume.id}.img", 0, b"x" * 8192)

        async def nothing() -> int:
            return 4096

        monkeypatch.setattr(service.disks, "count_free_bytes", nothing)
        monkeypatch.setattr(service.disks, "shares", False)
        text = await assert_refused(
            "InsufficientVolumeCapacity", service.snapshots.create(volume.id, tags={})
        )
        assert "0 MiB are left" in text
        await assert_refused("InsufficientVolumeCapacity", service.create(REQUEST))


MADE = CloudVolume(id="vol-1", zone=ZONE, shape=VolumeShape(1), state=VolumeState.CREATING)
TAKEN = CloudSnapshot(id="snap-1", volume="vol-1", size=1, state=SnapshotState.PENDING, started="")


@pytest.mark.parametrize(
    ("id_returned", "snapshot", "steps"),
    [(False, "snap-1", [DeleteDisk()]), (True, "snap-1", [FinishCopy()]), (True, "", [MarkLost()])],
    ids=["no client has its id", "its snapshot is still there", "its source has changed"],
)
def test_a_volume_half_made_at_a_start(id_returned: bool, snapshot: str, steps: list[Step]) -> None:
    volume = structs.replace(MADE, id_returned=id_returned, snapshot=snapshot)
    assert list(plan(volume, has_file=True, bound=False)) == steps


@pytest.mark.parametrize(
    ("changes", "has_file", "steps"),
    [
        ({}, True, [DeleteDisk()]),
        ({"id_returned": True}, True, [MarkLost()]),
        ({"state": SnapshotState.COMPLETED}, True, []),
        ({"state": SnapshotState.COMPLETED}, False, [MarkLost()]),
        ({"state": SnapshotState.COMPLETED, "deleting": True}, True, [DeleteDisk()]),
        ({"state": SnapshotState.ERROR}, False, []),
        ({"state": SnapshotState.PENDING, "source": "snap-1", "id_returned": True}, False, [FinishCopy()]),
        ({"state": SnapshotState.PENDING, "source": "snap-1"}, False, [DeleteDisk()]),
    ],
    ids=[
        "no client has its id",
        "a client has its id",
        "complete",
        "file missing",
        "half deleted",
        "failed",
        "a client has the id of the copy",
        "no client has the id of the copy",
    ],
)
def test_a_snapshot_at_a_start(changes: dict[str, object], has_file: bool, steps: list[Step]) -> None:
    assert list(plan_snapshot(structs.replace(TAKEN, **changes), has_file=has_file)) == steps


async def test_the_next_start_tells_of_a_snapshot_that_was_promised(tmp_path: Path) -> None:
    store = MemoryStore()
    async with cloud(tmp_path, store) as service:
        volume = await service.create(REQUEST)
        whole = await service.snapshots.create(volume.id, tags={})
        for name, id_returned in (("snap-0000000a", True), ("snap-0000000b", False)):
            half = structs.replace(
                whole,
                id=name,
                state=SnapshotState.PENDING,
                id_returned=id_returned,
                volume=volume.id,
                ended="",
            )
            await service.records.put_snapshot(half)
            (tmp_path / "snapshots" / f"{name}.img").write_bytes(b"half")
        (tmp_path / "snapshots" / "snap-0000000c.img").write_bytes(b"nobody's")
    async with cloud(tmp_path, store) as service:
        assert sorted(service.records.snapshots) == sorted([whole.id, "snap-0000000a"])
        failed = service.snapshots.get("snap-0000000a")
        assert (failed.state, failed.why) == (SnapshotState.ERROR, "it was interrupted")
        left = {f"{whole.id}.img", "snap-0000000c.img.orphaned"}  # it has data, but no record
        assert set(os.listdir(tmp_path / "snapshots")) == left
    assert snapshots_room.TRIES > 1


async def test_progress_and_sparse_copies(tmp_path: Path) -> None:
    source, target, seen = tmp_path / "a", tmp_path / "b", list[int]()
    source.touch()
    os.truncate(source, 4 * GIB)
    for place in (0, 100 << 20, 4 * GIB - 4096):
        put(source, place, os.urandom(4096))
    assert not copies.copy(str(source), str(target), report=seen.append, share=False)
    assert seen == sorted(seen)
    assert seen[-1] == 100
    assert target.stat().st_size == 4 * GIB
    assert target.stat().st_blocks == source.stat().st_blocks
    for place in (0, 100 << 20, 4 * GIB - 4096):
        assert get(source, place, 4096) == get(target, place, 4096)


async def test_a_modification_is_finished_at_the_next_start(tmp_path: Path) -> None:
    store = MemoryStore()
    async with cloud(tmp_path, store) as service:
        half, removed, lost = [await service.create(REQUEST) for _ in range(3)]
        for volume in (half, removed, lost):
            change = CloudModification(
                volume.id, volume.shape, VolumeShape(2, "gp3", 3000, 125), "2026-01-01T00:00:00Z"
            )
            await service.records.put_modification(change)
        await service.records.put_volume(structs.replace(lost, used=True))
        (tmp_path / "disks" / f"{lost.id}.img").unlink()
        stale = service.records.modifications[removed.id]
        await service.delete(removed.id)
        await service.records.put_modification(stale)
    async with cloud(tmp_path, store) as service:
        assert service.volume(half.id).shape.size == 2
        assert service.records.modifications[half.id].state == "completed"
        assert (tmp_path / "disks" / f"{half.id}.img").stat().st_size == 2 * GIB
        assert removed.id not in service.records.modifications
        assert service.volume(lost.id).state is VolumeState.ERROR


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "InsufficientVolumeCapacity"), (errno.EIO, "InternalError")]
)
async def test_a_snapshot_that_the_machine_refuses_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    def fails(source: str, target: str, *, report: copies.ProgressCallback) -> bool:
        raise OSError(number, os.strerror(number))

    async with cloud(tmp_path) as service:
        volume = await service.create(REQUEST)
        monkeypatch.setattr(copies, "copy", fails)
        text = await assert_refused(code, service.snapshots.create(volume.id, tags={}))
        assert os.strerror(number) in text
        assert service.records.snapshots == {}
