"""Volumes on real files and loop devices: what is refused, what a killed service leaves to its next start."""

from __future__ import annotations

import asyncio
import os
import string
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from volplane.base.tasks import cancel_and_wait
from volplane.cloud import CloudInstance, CloudOptions, DiskService, disks, open_service
from volplane.cloud.create_volume import CloudVolumeRequest
from volplane.cloud.errors import Ec2ErrorResponse, RecordsLostError
from volplane.cloud.model import AttachmentState, CloudAttachment, CloudVolume, VolumeShape, VolumeState
from volplane.cloud.service import double_attaches
from volplane.host import Host
from volplane.store import StoreFailed
from volplane.store.memory import MemoryStore

pytestmark = pytest.mark.root

ZONE = "us-east-1a"
REQUEST = CloudVolumeRequest(zone=ZONE, shape=VolumeShape(1, "gp3"), token="claim-1")


def settings(directory: Path, **more: Any) -> CloudOptions:
    nodes = tuple(
        CloudInstance(f"i-{n}", zone, str(directory / f"n{n}"))
        for n, zone in [(1, ZONE), (2, ZONE), (3, "us-east-1b")]
    )
    return CloudOptions(data_dir=str(directory), access_key="a", secret_key="s", instances=nodes, **more)


@asynccontextmanager
async def cloud(
    directory: Path, store: MemoryStore | None = None, **more: float
) -> AsyncIterator[DiskService]:
    host = Host()
    try:
        async with open_service(settings(directory, **more), host, store or MemoryStore()) as service:
            yield service
    finally:
        await host.close()


def backing(device: str) -> str:
    return Path(f"/sys/block/{device[5:]}/loop/backing_file").read_text().strip()


def is_there(link: Path) -> bool:
    return os.path.lexists(link)


async def assert_refused(code: str, call: object) -> str:
    with pytest.raises(Ec2ErrorResponse) as caught:
        await call  # type: ignore[misc]
    assert caught.value.code == code
    return caught.value.message


async def test_the_count_of_free_space_ends_with_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def count(directory: str) -> None:
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    async with cloud(tmp_path) as service:
        monkeypatch.setattr(service.disks._host, "stats", count)
        waiter = asyncio.create_task(service.disks.count_free_bytes())
        await started.wait()
        await cancel_and_wait(waiter)
    assert ended.is_set()


async def test_a_disk_is_made_attached_moved_and_removed(tmp_path: Path) -> None:
    async with cloud(tmp_path) as service:
        volume = await service.create(REQUEST)
        file = tmp_path / "disks" / f"{volume.id}.img"
        assert file.stat().st_size == 1 << 30
        assert file.stat().st_blocks == 0
        for node in ("i-1", "i-2"):
            held = await service.attach(volume.id, node, "/dev/xvdba")
            assert held.state is AttachmentState.ATTACHED
            link = tmp_path / f"n{node[-1]}" / "xvdba"
            device = os.readlink(link)
            assert backing(device) == str(file)
            stable = "nvme-Amazon_Elastic_Block_Store_" + volume.id.replace("-", "")
            names = (f"disk/by-id/{stable}", "nvme52n1")
            assert [os.readlink(tmp_path / f"n{node[-1]}" / name) for name in names] == [device] * 2
            done = await service.detach(volume.id, node)
            assert done.state is AttachmentState.DETACHED
            assert not any(is_there(link.parent / name) for name in (*names, link.name))
            assert service.volume(volume.id).state is VolumeState.AVAILABLE
        await service.delete(volume.id)
        assert os.listdir(tmp_path / "disks") == []
        await assert_refused("InvalidVolume.NotFound", service.delete(volume.id))


class RefusingStore(MemoryStore):
    """A store that may refuse to create records of volumes."""

    is_refusing = False

    async def create(self, key: str, value: bytes) -> int:
        if self.is_refusing and "/volumes/" in key:
            raise StoreFailed("disk I/O error")
        return await super().create(key, value)


async def test_a_volume_that_cannot_be_stored_is_not_shown_any_more_and_is_made_at_the_next_request(
    tmp_path: Path,
) -> None:
    store = RefusingStore()
    async with cloud(tmp_path, store) as service:
        store.is_refusing = True
        with pytest.raises(StoreFailed):
            await service.create(REQUEST)
        assert (service.records.volumes, service.records.granted) == ({}, 0)
        store.is_refusing = False
        assert (await service.create(REQUEST)).state is VolumeState.AVAILABLE


async def test_a_token_makes_one_volume(tmp_path: Path) -> None:
    async with cloud(tmp_path) as service:
        made = await asyncio.gather(*(service.create(REQUEST) for _ in range(5)))
        assert len({v.id for v in made}) == 1
        other = CloudVolumeRequest(zone=ZONE, shape=VolumeShape(2, "gp3"), token="claim-1")
        await assert_refused("IdempotentParameterMismatch", service.create(other))
        await service.delete(made[0].id)
        assert (await service.create(other)).shape.size == 2


async def test_a_second_attach_is_refused_and_counted(tmp_path: Path) -> None:
    async with cloud(tmp_path) as service:
        volume = await service.create(REQUEST)
        before = double_attaches._value.get()
        results = await asyncio.gather(
            *(service.attach(volume.id, node, "/dev/xvdba") for node in ("i-1", "i-2")),
            return_exceptions=True,
        )
        assert [isinstance(r, CloudAttachment) for r in results] == [True, False]
        await assert_refused("VolumeInUse", service.attach(volume.id, "i-2", "/dev/xvdbb"))
        await assert_refused("VolumeInUse", service.attach(volume.id, "i-1", "/dev/xvdbb"))
        await assert_refused("VolumeInUse", service.delete(volume.id))
        assert double_attaches._value.get() == before + 2
        await service.detach(volume.id)


async def test_places_that_are_refused(tmp_path: Path) -> None:
    async with cloud(tmp_path) as service:
        one = await service.create(REQUEST)
        two = await service.create(CloudVolumeRequest(zone=ZONE, shape=VolumeShape(1)))
        await service.attach(one.id, "i-1", "/dev/xvdba")
        await assert_refused("InvalidParameterValue", service.attach(two.id, "i-1", "/dev/xvdba"))
        await assert_refused("InvalidParameterValue", service.attach(two.id, "i-1", "/dev/../etc/passwd"))
        await assert_refused("InvalidVolume.ZoneMismatch", service.attach(two.id, "i-3", "/dev/xvdba"))
        await assert_refused("InvalidInstanceID.NotFound", service.attach(two.id, "i-9", "/dev/xvdba"))
        await assert_refused("InvalidVolume.NotFound", service.attach("vol-9", "i-1", "/dev/xvdbb"))
        await assert_refused("InvalidAttachment.NotFound", service.detach(one.id, "i-2"))
        await assert_refused("IncorrectState", service.detach(two.id))
        await assert_refused(
            "InvalidZone.NotFound", service.create(CloudVolumeRequest(zone="mars-1a", shape=VolumeShape(1)))
        )
        await assert_refused("IncorrectInstanceState", service.deregister("i-1"))
        await service.detach(one.id)


async def test_an_instance_has_28_places(tmp_path: Path) -> None:
    async with cloud(tmp_path) as service:
        volumes = [
            await service.create(CloudVolumeRequest(zone=ZONE, shape=VolumeShape(1))) for _ in range(29)
        ]
        names = [f"/dev/xvdb{chr(97 + n)}" if n < 26 else f"/dev/xvdc{chr(97 + n - 26)}" for n in range(29)]
        await asyncio.gather(
            *(service.attach(v.id, "i-1", d) for v, d in zip(volumes[:28], names, strict=False))
        )
        await assert_refused("AttachmentLimitExceeded", service.attach(volumes[28].id, "i-1", names[28]))


async def test_the_machine_bounds_what_is_promised(tmp_path: Path) -> None:
    async with cloud(tmp_path, thin=0.0) as service:
        await assert_refused("InsufficientVolumeCapacity", service.create(REQUEST))
        assert await service.capacity() == 0


async def test_a_mounted_disk_is_not_detached(tmp_path: Path) -> None:
    host, point = Host(), tmp_path / "mounted"
    point.mkdir()
    async with cloud(tmp_path) as service:
        volume = await service.create(REQUEST)
        await service.attach(volume.id, "i-1", "/dev/xvdba")
        device = os.readlink(tmp_path / "n1" / "xvdba")
        await host.mkfs(device, "ext4")
        await host.mount(device, str(point), "ext4")
        text = await assert_refused("VolumeInUse", service.detach(volume.id, "i-1"))
        assert str(point) in text
        assert os.readlink(tmp_path / "n1" / "xvdba") == device
        held = service.volume(volume.id).find_attachment("i-1")
        assert held is not None
        assert held.state is AttachmentState.ATTACHED
        await host.unmount(str(point))
        await service.detach(volume.id, "i-1")
    await host.close()


async def test_a_lazily_unmounted_disk_meets_no_second_mount(tmp_path: Path) -> None:
    host, point = Host(), tmp_path / "mounted"
    point.mkdir()
    async with cloud(tmp_path) as service:
        volume = await service.create(REQUEST)
        await service.attach(volume.id, "i-1", "/dev/xvdba")
        device = os.readlink(tmp_path / "n1" / "xvdba")
        await host.mkfs(device, "ext4")
        await host.mount(device, str(point), "ext4")
        pin = os.open(point, os.O_RDONLY)
        await host.unmount(str(point), detach=True)
        await assert_refused("VolumeInUse", service.detach(volume.id, "i-1"))
        await assert_refused("VolumeInUse", service.detach(volume.id, "i-1", force=True))
        await assert_refused("VolumeInUse", service.attach(volume.id, "i-2", "/dev/xvdba"))
        os.close(pin)
        await service.detach(volume.id, "i-1")
        await service.attach(volume.id, "i-2", "/dev/xvdba")
    await host.close()


async def test_a_mount_in_another_namespace_counts(tmp_path: Path) -> None:
    host, point = Host(), tmp_path / "mounted"
    point.mkdir()
    async with cloud(tmp_path) as service:
        volume = await service.create(REQUEST)
        await service.attach(volume.id, "i-1", "/dev/xvdba")
        device = os.readlink(tmp_path / "n1" / "xvdba")
        await host.mkfs(device, "ext4")
        await host.mount(device, str(point), "ext4")
        # It says when it has its copy of the mounts, and keeps it until its input ends.
        command = ("unshare", "--mount", "--propagation=private", "sh", "-c", "echo; read line")
        pipe = asyncio.subprocess.PIPE
        holder = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        assert holder.stdin is not None
        assert holder.stdout is not None
        await holder.stdout.readline()
        await host.unmount(str(point))
        for force in (False, True):
            text = await assert_refused("VolumeInUse", service.detach(volume.id, "i-1", force=force))
            assert f"in the namespace of process {holder.pid}" in text
        holder.stdin.close()
        await holder.wait()
        await service.detach(volume.id, "i-1")
    await host.close()


async def test_force_takes_the_disk_from_a_dead_instance(tmp_path: Path) -> None:
    host, point = Host(), tmp_path / "mounted"
    point.mkdir()
    async with cloud(tmp_path) as service:
        volume = await service.create(REQUEST)
        for how in ("force", "stopped"):
            await service.attach(volume.id, "i-1", "/dev/xvdba")
            device = os.readlink(tmp_path / "n1" / "xvdba")
            if await host.probe(device) is None:
                await host.mkfs(device, "ext4")
            await host.mount(device, str(point), "ext4")
            if how == "stopped":
                await service.power("i-1", running=False)
            await service.detach(volume.id, "i-1", force=how == "force")
            assert not await host.is_mount(str(point))
        await assert_refused("IncorrectState", service.attach(volume.id, "i-1", "/dev/xvdba"))
    await host.close()


async def test_growing_an_attached_disk(tmp_path: Path) -> None:
    host = Host()
    async with cloud(tmp_path) as service:
        volume = await service.create(REQUEST)
        await service.attach(volume.id, "i-1", "/dev/xvdba")
        done = await service.modify(volume.id, {"size": 3})
        assert (done.original.size, done.target.size) == (1, 3)
        assert await host.size_of(os.readlink(tmp_path / "n1" / "xvdba")) == 3 << 30
        await assert_refused("InvalidParameterValue", service.modify(volume.id, {"size": 2}))
        await service.modify(volume.id, {"type": "io2", "iops": 100, "size": 4})
        assert service.volume(volume.id).shape == VolumeShape(4, "io2", 100, 0)
    await host.close()


async def test_growing_never_shortens_a_file(tmp_path: Path) -> None:
    """In a restored backup, it may be longer than its record says."""
    async with cloud(tmp_path) as service:
        volume = await service.create(REQUEST)
        image = service.disks.file(volume.id)
        os.truncate(image, 5 << 30)
        await service.modify(volume.id, {"size": 3})
        assert os.path.getsize(image) == 5 << 30  # noqa: ASYNC240


async def test_a_clean_stop_releases_loop_devices_and_a_start_binds_them_again(tmp_path: Path) -> None:
    store = MemoryStore()
    async with cloud(tmp_path, store) as service:
        volume = await service.create(REQUEST)
        await service.attach(volume.id, "i-1", "/dev/xvdba")
    assert not is_there(tmp_path / "n1" / "xvdba")
    async with cloud(tmp_path, store) as service:
        held = service.volume(volume.id).find_attachment("i-1")
        assert held is not None
        assert held.state is AttachmentState.ATTACHED
        device = os.readlink(tmp_path / "n1" / "xvdba")
        assert backing(device).endswith(f"{volume.id}.img")


class Killed(BaseException):
    """In place of SIGKILL: whatever the operation wanted to do next does not happen."""


@pytest.mark.parametrize("point", ["intent", "effect", "result"])
@pytest.mark.parametrize("action", ["CreateVolume", "AttachVolume", "DetachVolume", "DeleteVolume"])
async def test_a_killed_service_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, point: str
) -> None:
    store, stop = MemoryStore(), f"cloud:{action}:{point}"

    def hit(name: str) -> None:
        if name == stop:
            raise Killed

    async def use_volume(service: DiskService) -> None:
        volume = await service.create(REQUEST)
        if volume.state is VolumeState.AVAILABLE:
            await service.attach(volume.id, "i-1", "/dev/xvdba")
        if service.volume(volume.id).attachments:
            await service.detach(volume.id, "i-1")
        await service.delete(volume.id)

    host = Host()
    monkeypatch.setattr("volplane.base.failpoint.is_armed", True)
    monkeypatch.setattr("volplane.base.failpoint.hit", hit)
    died = open_service(settings(tmp_path), host, store)
    service = await died.__aenter__()
    with pytest.raises(Killed):
        await use_volume(service)
    await service.records._background.close()  # a dead process writes nothing more
    monkeypatch.setattr("volplane.base.failpoint.is_armed", False)
    async with open_service(settings(tmp_path), host, store) as service:
        unfinished = {VolumeState.CREATING, VolumeState.DELETING}
        moving = {AttachmentState.ATTACHING, AttachmentState.DETACHING}
        for volume in service.records.volumes.values():
            assert volume.state not in unfinished
            assert not {a.state for a in volume.attachments} & moving
        files = {f.removesuffix(".img") for f in os.listdir(tmp_path / "disks")}
        assert files == set(service.records.volumes)
        await use_volume(service)
        assert service.records.volumes == {}
    assert os.listdir(tmp_path / "disks") == []
    await host.close()


async def test_a_disk_of_an_instance_without_a_record_does_not_keep_the_service_from_starting(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    async with cloud(tmp_path, store) as service:
        leaving, attached = await service.create(REQUEST), await service.create(replace(REQUEST, token="2"))
        for volume, state in ((leaving, AttachmentState.DETACHING), (attached, AttachmentState.ATTACHED)):
            on_missing = CloudAttachment("i-9", "/dev/xvdba", state)
            await service.records.put_volume(
                replace(volume, state=VolumeState.IN_USE, attachments=(on_missing,), used=True)
            )
    async with cloud(tmp_path, store) as service:
        found = service.volume(leaving.id)
        assert (found.state, found.attachments) == (VolumeState.AVAILABLE, ())
        assert service.volume(attached.id).state is VolumeState.IN_USE


async def test_files_that_belong_to_nothing_are_removed_only_if_they_hold_nothing(tmp_path: Path) -> None:
    host, store = Host(), MemoryStore()
    async with cloud(tmp_path, store):
        pass
    blank, written = tmp_path / "disks" / "vol-0dead.img", tmp_path / "disks" / "vol-0data.img"
    written.write_bytes(b"user data " * 1000)
    blank.touch()
    os.truncate(blank, 1 << 20)
    for stray in (blank, written):
        await host.loop_attach(str(stray))
    async with cloud(tmp_path, store):
        assert os.listdir(tmp_path / "disks") == ["vol-0data.img.orphaned"]
    assert not {str(blank), str(written)} & set((await host.loops()).values())
    await host.close()


async def test_disks_without_their_records_are_left_alone_and_nothing_starts(tmp_path: Path) -> None:
    async with cloud(tmp_path) as service:
        volume = await service.create(REQUEST)
    with pytest.raises(RecordsLostError, match=r"/state\.db has no records of the 1 disks in"):
        async with cloud(tmp_path):
            pytest.fail("it started")
    assert os.listdir(tmp_path / "disks") == [f"{volume.id}.img"]


async def test_a_lost_file_with_data_is_said_and_not_replaced(tmp_path: Path) -> None:
    store = MemoryStore()
    async with cloud(tmp_path, store) as service:
        used, unused = (
            await service.create(REQUEST),
            await service.create(CloudVolumeRequest(zone=ZONE, shape=VolumeShape(1))),
        )
        await service.attach(used.id, "i-1", "/dev/xvdba")
        await service.detach(used.id, "i-1")
    for name in os.listdir(tmp_path / "disks"):
        os.unlink(tmp_path / "disks" / name)
    async with cloud(tmp_path, store) as service:
        assert service.volume(used.id).state is VolumeState.ERROR
        assert service.volume(unused.id).state is VolumeState.AVAILABLE
        assert os.listdir(tmp_path / "disks") == [f"{unused.id}.img"]
        await assert_refused("IncorrectState", service.attach(used.id, "i-1", "/dev/xvdba"))


def _write(file: str) -> None:
    with open(file, "r+b") as image:
        image.write(b"data")


async def test_a_disk_whose_file_is_short_or_gone_is_an_error_until_it_is_back(tmp_path: Path) -> None:
    """The others work meanwhile, also those of the same instance, and wherever that has moved."""
    store = MemoryStore()
    async with cloud(tmp_path, store) as service:
        missing, short, fine = [
            await service.create(CloudVolumeRequest(zone=ZONE, shape=VolumeShape(1))) for _ in range(3)
        ]
        for number, volume in enumerate((missing, short, fine)):
            await service.attach(volume.id, "i-1", f"/dev/xvdb{'abc'[number]}")
        for volume in (missing, short):
            _write(service.disks.file(volume.id))
    place = tmp_path / "disks" / f"{missing.id}.img"
    place.rename(tmp_path / "kept")
    os.truncate(tmp_path / "disks" / f"{short.id}.img", 4096)
    async with cloud(tmp_path, store) as service:
        assert [service.volume(v.id).state for v in (missing, short, fine)] == ["error", "error", "in-use"]
        links = {link.name for link in (tmp_path / "n1").iterdir() if link.is_symlink()}
        assert links == {"xvdbc", "nvme54n1"}
        await service.detach(missing.id, "i-1")
        assert "is 'error'" in await assert_refused(
            "IncorrectState", service.attach(missing.id, "i-1", "/dev/xvdba")
        )
    (tmp_path / "kept").rename(place)
    async with cloud(tmp_path, store) as service:
        assert [service.volume(v.id).state for v in (missing, short, fine)] == [
            "available",
            "error",
            "in-use",
        ]


async def test_links_of_another_life_are_removed(tmp_path: Path) -> None:
    """They may show a disk of the directory that this one was copied from."""
    host, store = Host(), MemoryStore()
    async with cloud(tmp_path, store) as service:
        volume = await service.create(REQUEST)
        await service.attach(volume.id, "i-1", "/dev/xvdba")
    foreign = tmp_path / "foreign.img"
    foreign.touch()
    os.truncate(foreign, 1 << 20)
    device = await host.loop_attach(str(foreign))
    (tmp_path / "n1" / "xvdbz").symlink_to(device)
    (tmp_path / "n1" / "own").symlink_to(device)
    async with cloud(tmp_path, store):
        assert is_there(tmp_path / "n1" / "xvdba")
        assert not is_there(tmp_path / "n1" / "xvdbz")
        assert is_there(tmp_path / "n1" / "own")  # the directory may be a machine's own /dev
    await host.loop_detach(device, str(foreign))
    await host.close()


def test_a_record_survives_its_json(tmp_path: Path) -> None:
    import msgspec

    held = CloudAttachment("i-1", "/dev/xvdba", AttachmentState.ATTACHED, "now")
    volume = CloudVolume(
        "vol-1",
        ZONE,
        VolumeShape(1, "gp3"),
        VolumeState.IN_USE,
        attachments=(held,),
        tags={"a": "b"},
        used=True,
    )
    assert msgspec.json.decode(msgspec.json.encode(volume), type=CloudVolume) == volume


def test_a_disk_that_is_deleted_while_disks_are_counted_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gone.img", "kept.img"):
        (tmp_path / name).write_bytes(b"x" * 4096)
    scan = os.scandir

    @contextmanager
    def delete_one(directory: str) -> Iterator[list[os.DirEntry[str]]]:
        with scan(directory) as entries:
            found = list(entries)
        (tmp_path / "gone.img").unlink()
        yield found

    monkeypatch.setattr(os, "scandir", delete_one)
    assert disks._count_written_bytes(str(tmp_path)) == (tmp_path / "kept.img").stat().st_blocks * 512


def test_names_of_disks_on_an_instance_never_meet() -> None:
    letters = string.ascii_lowercase
    names = [f"xvd{a}{b}" for a in letters for b in ("", *letters)]
    found = [name for one in names for name in disks.nvme_names(one)]
    assert len(found) == len(set(found)) == len(names) - 1  # the root disk has none of ours
    assert disks.nvme_names("xvda") == disks.nvme_names("loop7") == ()
