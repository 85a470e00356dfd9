"""A busy cluster whose disk is copied at many moments: every copy starts, and has all that was acknowledged.

Each copy is what the disk holds when the power is cut at that moment. What a process has only handed to the
kernel is not in it; what it has synced is. All copies are opened with the code of a start, some (with
`VOLPLANE_CRASH_IMAGES=300`: all of that many, over a busy minute) with a whole cluster.
`VOLPLANE_CRASH_FILESYSTEM=xfs` or `btrfs` takes another file system than ext4.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import Struct, structs

from tests.support import machine
from tests.support.crash_images import Images
from tests.support.power_cut import cut_power
from tests.support.up import Up, wait_until
from volplane.api.core import (
    ConfigMap,
    Container,
    HostPathVolumeSource,
    Node,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimVolumeSource,
    Pod,
    PodSpec,
    Volume,
    VolumeMount,
    VolumeResourceRequirements,
)
from volplane.api.errors import APIError
from volplane.api.meta import ObjectMeta
from volplane.api.storage import VolumeAttachment
from volplane.client import kubeconfig
from volplane.client.client import Client
from volplane.cloud.records import CloudRecords
from volplane.host import devices
from volplane.node.containers import records
from volplane.store.sqlite import SqliteStore

pytestmark = [pytest.mark.root, pytest.mark.slow]

COPIES = int(os.environ.get("VOLPLANE_CRASH_IMAGES", "0"))
FILESYSTEM = os.environ.get("VOLPLANE_CRASH_FILESYSTEM", "ext4")
FEW, WHOLE = 12, 2  # copies by default, and how many of them become a cluster
PAUSE = 0.2  # seconds between two copies
WRITERS, USERS = 4, 3
LOOK, LOOKS = 0.05, 1200  # seconds between two looks, and how many
NAMESPACE = "default"


class Acknowledged(Struct, frozen=True):
    """Writes that were acknowledged before a moment."""

    counters: dict[str, int]  # by name: the highest number that was written
    deleted: frozenset[str]
    synced: int  # the highest number that the pod has synced to its disk


class Crash(Struct, frozen=True):
    image: Path
    before: Acknowledged


class Load:
    """Clients that write objects, and pods with disks that are created and deleted."""

    def __init__(self, client: Client, outside: Path) -> None:
        self._client, self._outside = client, outside
        self.counters: dict[str, int] = {}
        self.deleted: set[str] = set()
        self.pods = 0  # that ran
        self._tasks: list[asyncio.Task[None]] = []

    def read_acknowledged(self) -> Acknowledged:
        synced = self._outside / "synced"
        number = int(synced.read_text() or 0) if synced.exists() else 0
        return Acknowledged(dict(self.counters), frozenset(self.deleted), number)

    async def start(self) -> None:
        await self._client.create(claim("steady"))
        await self._client.create(pod("steady", STEADY, self._outside))
        await self._until_running("steady")
        work = [
            *(self._count(f"counter-{n}") for n in range(WRITERS)),
            self._come_and_go(),
            *(self._use_disks(n) for n in range(USERS)),
        ]
        self._tasks = [asyncio.create_task(each) for each in work]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        assert all(isinstance(r, asyncio.CancelledError) for r in results), results

    async def _count(self, name: str) -> None:
        """Compare-and-set: each write replaces the very one before it."""
        held = await self._client.create(config(name, 0))
        for number in range(1, 1 << 30):
            held = await self._client.update(structs.replace(held, data={"n": str(number)}))
            self.counters[name] = number

    async def _come_and_go(self) -> None:
        for number in range(1 << 30):
            await self._client.create(config(f"brief-{number}", number))
            await self._client.delete(ConfigMap, f"brief-{number}", NAMESPACE)
            self.deleted.add(f"brief-{number}")

    async def _use_disks(self, who: int) -> None:
        for number in range(1 << 30):
            name = f"user-{who}-{number}"
            await self._client.create(claim(name))
            await self._client.create(pod(name, BRIEF))
            await self._until_running(name)
            self.pods += 1
            await self._client.delete(Pod, name, NAMESPACE)
            await self._client.delete(PersistentVolumeClaim, name, NAMESPACE)

    async def _until_running(self, name: str) -> None:
        for _ in range(LOOKS):
            if (await self._client.get(Pod, name, NAMESPACE)).status.phase == "Running":
                return
            await asyncio.sleep(LOOK)
        raise AssertionError(f"pod {name} does not run")


# The number counts outside only after it was synced inside.
STEADY = (
    "n=0; while n=$((n+1)); do "
    "echo $n > /data/n && sync /data/n && echo $n > /out/new && mv /out/new /out/synced; done"
)
BRIEF = "head -c 100000 /dev/urandom > /data/f; sync -f /data; sleep infinity"


def config(name: str, number: int) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=NAMESPACE), data={"n": str(number)})


def claim(name: str) -> PersistentVolumeClaim:
    return PersistentVolumeClaim(
        metadata=ObjectMeta(name=name, namespace=NAMESPACE),
        spec=PersistentVolumeClaimSpec(
            access_modes=("ReadWriteOnce",),
            storage_class_name="gp3",
            resources=VolumeResourceRequirements(requests={"storage": "1Gi"}),
        ),
    )


def pod(name: str, command: str, outside: Path | None = None) -> Pod:
    source = PersistentVolumeClaimVolumeSource(claim_name=name)
    volumes = [Volume(name="data", persistent_volume_claim=source)]
    mounts = [VolumeMount(name="data", mount_path="/data")]
    if outside is not None:
        volumes.append(Volume(name="out", host_path=HostPathVolumeSource(path=str(outside))))
        mounts.append(VolumeMount(name="out", mount_path="/out"))
    main = Container(name="main", image="busybox", command=("sh", "-c", command), volume_mounts=tuple(mounts))
    return Pod(
        metadata=ObjectMeta(name=name, namespace=NAMESPACE),
        spec=PodSpec(containers=(main,), volumes=tuple(volumes), termination_grace_period_seconds=0),
    )


@asynccontextmanager
async def connect(directory: Path) -> AsyncIterator[Client]:
    transport = kubeconfig.load(directory / "kubeconfig")
    client = Client(transport)
    try:
        yield client
    finally:
        await client.close()
        await transport.close()


# --- the busy minute


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    place = tmp_path_factory.mktemp("crash")
    with Images(place, FILESYSTEM) as made:
        try:
            yield made
        finally:
            machine.purge(made.place)


@pytest.fixture(scope="module")
def crashes(images: Images, tmp_path_factory: pytest.TempPathFactory) -> list[Crash]:
    """The copies, each with what was acknowledged before it was begun."""
    outside = tmp_path_factory.mktemp("outside")
    up = cluster(images)
    try:
        up.start()
        found = asyncio.run(_watch(up.directory, images, outside))
    finally:
        if up.process is not None and up.process.poll() is None:
            cut_power(up)
        images.unmount()
    return found


def cluster(images: Images) -> Up:
    directory = images.place / "d"
    directory.mkdir(0o700, exist_ok=True)
    up = Up(nodes=2, directory=directory)
    up.output = images.place.parent / "up.log"
    return up


async def _watch(directory: Path, images: Images, outside: Path) -> list[Crash]:
    found = []
    async with connect(directory) as client:
        load = Load(client, outside)
        await load.start()
        for _ in range(COPIES or FEW):
            before = await asyncio.to_thread(load.read_acknowledged)
            found.append(Crash(await asyncio.to_thread(images.clone), before))
            await asyncio.sleep(PAUSE)
        await load.stop()
        print(f"{len(found)} copies; {sum(load.counters.values())} writes, {load.pods} pods with disks")
    return found


# --- what holds after each


def test_every_copy_starts_and_has_all_that_was_acknowledged(images: Images, crashes: list[Crash]) -> None:
    whole = crashes if COPIES else crashes[:: len(crashes) // WHOLE][:WHOLE]
    problems = {}
    for crash in crashes:
        try:
            images.mount(crash.image)
            asyncio.run(_check_stores(images.place / "d", crash.before))
            if crash in whole:
                _check_cluster(cluster(images), crash.before)
            else:
                _check_containers(images.place / "d")
        except (AssertionError, APIError, OSError) as error:
            problems[crash.image.name] = f"{type(error).__name__}: {error}"
            print(f"{crash.image.name} failed: {problems[crash.image.name]}")
            machine.purge(images.place / "d")
        finally:
            images.unmount()
            crash.image.unlink()
    print(f"{len(crashes)} copies were opened, {len(whole)} of them as a cluster, {len(problems)} failed")
    assert not problems, "\n\n".join(f"{name}: {text}" for name, text in problems.items())
    assert any(crash.before.synced for crash in crashes)
    assert crashes[-1].before.deleted


async def _check_stores(directory: Path, before: Acknowledged) -> None:
    """Read by the code of a start, which changes nothing that a start would find."""
    store = await SqliteStore.open(directory / "state.db")
    try:
        for name, number in before.counters.items():
            record = await store.get(f"/registry/configmaps/{NAMESPACE}/{name}")
            assert record is not None, f"{name} is gone"
            found = re.search(rb'"n":"(\d+)"', record.value)
            assert found is not None, record.value
            assert int(found[1]) >= number, name
        for name in before.deleted:
            assert await store.get(f"/registry/configmaps/{NAMESPACE}/{name}") is None, name
    finally:
        await store.close()
    disks = await SqliteStore.open(directory / "cloud" / "state.db")
    try:
        ledger = CloudRecords(disks)
        await ledger.load()
        assert not ledger.unreadable
    finally:
        await disks.close()
    volumes = [v for v in ledger.volumes.values() if v.tags.get(CLAIM) == "steady"]
    assert len(volumes) == 1
    assert _read_disk(directory / "cloud" / "disks" / f"{volumes[0].id}.img") >= before.synced


def _check_containers(directory: Path) -> None:
    for node in (directory / "n").iterdir():
        for record in records.load_all(str(node / "containers")):
            assert not record.state().running


CLAIM = "kubernetes.io/created-for/pvc/name"


def _read_disk(image: Path) -> int:
    """The number that the pod has written; the file system of the disk is replayed like any other."""
    place = image.parent.parent / "look"
    place.mkdir()
    device = devices.loop_attach(str(image))
    try:
        subprocess.run(["mount", device, str(place)], check=True)
        try:
            return int((place / "n").read_text() or 0)
        except FileNotFoundError:
            return 0
        finally:
            subprocess.run(["umount", str(place)], check=True)
    finally:
        devices.loop_detach(device, str(image))
        place.rmdir()


def _check_cluster(up: Up, before: Acknowledged) -> None:
    up.output.write_bytes(b"")
    try:
        up.start()
        asyncio.run(_check_objects(up.directory, before))
        wait_until("the steady pod runs again", lambda: up.phase("steady") == "Running", 60)
        _check_disks(up.directory)
        assert up.stop() == 0, up.log()
        said = up.output.read_text(errors="replace")
        assert "Traceback" not in said, said
        assert not (left := up.leftovers()), left
    finally:
        if up.process is not None and up.process.poll() is None:
            cut_power(up)


async def _check_objects(directory: Path, before: Acknowledged) -> None:
    async with connect(directory) as client:
        found = {c.name: c for c in await client.list(ConfigMap, NAMESPACE)}
        for name, number in before.counters.items():
            assert int(found[name].data["n"]) >= number
        assert not before.deleted & found.keys()
        held = [
            a.spec.source.persistent_volume_name
            for a in await client.list(VolumeAttachment)
            if a.status.attached
        ]
        twice = [name for name, times in Counter(held).items() if times > 1]
        assert not twice, f"attached twice: {twice}"
        attached = [v.name for n in await client.list(Node) for v in n.status.volumes_attached]
        assert len(attached) == len(set(attached)), attached


def _check_disks(directory: Path) -> None:
    bound = Counter(file for file in devices.loops().values() if file.startswith(f"{directory}/cloud/"))
    assert all(times == 1 for times in bound.values()), bound
