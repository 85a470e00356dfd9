"""The driver in a cluster: what users do with claims and pods, and what happens on the way.

Each disturbance is put in the way of every call of one life: a claim, a pod that writes, another that reads,
and everything deleted. That a cluster comes to its end in spite of it is the cluster's merit as much as the
driver's; the calls in the report tell who was at fault.
"""

from __future__ import annotations

import asyncio
from typing import Any

from volplane.api import quantity
from volplane.api.core import PersistentVolumeClaim
from volplane.api.snapshot import VolumeSnapshot
from volplane.csi.outcome import Code
from volplane.csi.tap import Call
from volplane.testing.case import NotPromised, Table, demand
from volplane.testing.cases.disturbed import CALLS
from volplane.testing.whole import CLASS, NAMESPACE, Whole

case = Table(whole=True)

# What the container writes and what it finds, as checksums on the shelf; its errors go there, too.
WRITE = "head -c 1048576 /dev/urandom > /data/f && sync && sha256sum < /data/f > /shelf/{0}"
READ = "sha256sum < /data/f > /shelf/{0}"
STAY = "; touch /shelf/{0}.up; sleep 3600"
LIVES = "CSI: Volume Lifecycle"


def script(text: str, name: str) -> str:
    return f"exec 2>/shelf/{name}.err; " + text.format(name)


async def written(world: Whole, claim: str, **more: Any) -> str:
    """A pod writes; the checksum."""
    name = world.fresh("written")
    await world.run(script(WRITE, name), claim, **more)
    found = world.read(name)
    demand(found, "the pod has written nothing")
    return found


async def same(world: Whole, claim: str, told: str, when: str, **more: Any) -> None:
    name = world.fresh("read")
    await world.run(script(READ, name), claim, **more)
    demand(
        world.read(name) == told, f"the data is not what was written, {when}: {world.read(name)}, was {told}"
    )


async def life(world: Whole) -> None:
    claim = await world.claim()
    told = await written(world, claim)
    await same(world, claim, told, "in the next pod")
    await world.remove_claim(claim)
    await world.detached()


@case(
    "cluster/claim and pods",
    "Kubernetes: persistent volumes",
    "A claim is provisioned, a pod writes, the next one reads it, and everything is deleted with the claim.",
    "create",
)
async def claim_and_pods(world: Whole) -> None:
    await life(world)
    left = await world.left()
    demand(not left, f"mounts are left: {', '.join(left)}")


@case(
    "cluster/moves to another node",
    "Kubernetes: persistent volumes",
    "A pod on another node finds what the first one wrote.",
    "create",
)
async def moves(world: Whole) -> None:
    claim = await world.claim()
    told = await written(world, claim, node="worker-1")
    second = await world.second_node(claim)
    await same(world, claim, told, f"on {second}", node=second)
    await same(world, claim, told, "back on worker-1", node="worker-1")


@case(
    "cluster/two pods of a node",
    "Kubernetes: ReadWriteOnce is for one node, not for one pod",
    "Two pods of one node use a volume at the same time.",
    "create",
)
async def two_pods(world: Whole) -> None:
    claim, name = await world.claim(), world.fresh("first")
    first = await world.pod(script(WRITE + STAY, name), claim, node="worker-1")
    await world.running(first)
    while not world.read(name):  # noqa: ASYNC110 (a file that another process writes)
        await asyncio.sleep(0.05)
    await same(world, claim, world.read(name), "in the second pod of the node", node="worker-1")


@case(
    "cluster/read-only mount",
    "Kubernetes: readOnly of a volume mount",
    "A container that mounts the volume with readOnly reads it, and cannot write.",
    "create",
)
async def read_only(world: Whole) -> None:
    claim = await world.claim()
    told = await written(world, claim)
    name = world.fresh("read")
    text = f"exec 2>/shelf/{name}.err; {READ.format(name)}; if touch /data/no; then exit 9; else exit 0; fi"
    volume = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    await world.run(text, claim, readonly=True, volume=volume)
    demand(world.read(name) == told, "a read-only mount shows something else")


@case(
    "cluster/fsGroup",
    "Kubernetes: fsGroup of a pod",
    "The volume's files belong to the pod's group, and a user of this group can write.",
    "create",
)
async def fs_group(world: Whole) -> None:
    driver = world.guest.driver
    if driver is not None and driver.spec.fs_group_policy == "None":
        raise NotPromised("its CSIDriver says that fsGroup is not for its volumes")
    claim, name = await world.claim(), world.fresh("group")
    text = f"touch /data/mine && stat -c %g /data/mine > /data/out && cat /data/out > /shelf/{name}"
    world.shelf.chmod(0o777)
    await world.run(text, claim, securityContext={"fsGroup": 4711, "runAsUser": 1000, "runAsGroup": 1000})
    demand(world.read(name) == "4711", f"a new file belongs to group {world.read(name)}, fsGroup is 4711")


@case(
    "cluster/subPath",
    "Kubernetes: subPath of a volume mount",
    "A container that mounts a directory of the volume sees that directory, and its files are in the volume.",
    "create",
)
async def sub_path(world: Whole) -> None:
    claim = await world.claim()
    name, other = world.fresh("sub"), world.fresh("whole")
    await world.run(script(WRITE, name), claim, sub_path="a/b")
    await world.run(f"sha256sum < /data/a/b/f > /shelf/{other}", claim)
    demand(
        world.read(other) == world.read(name),
        "what was written through subPath is not in the volume's directory",
    )


@case(
    "cluster/block",
    "Kubernetes: volumeMode Block",
    "A raw device is given to a container, and keeps what is written to it.",
    "create",
    "block",
)
async def block(world: Whole) -> None:
    claim = await world.claim(block=True)
    names = world.fresh("device"), world.fresh("again")
    make = "head -c 1048576 /dev/urandom > /tmp/f && dd if=/tmp/f of=/dev/data bs=1M conv=fsync"
    tell = f"sha256sum < /tmp/f > /shelf/{names[0]}"
    await world.run(f"exec 2>/shelf/{names[0]}.err; {make} && {tell}", claim, block=True)
    look = f"dd if=/dev/data bs=1M count=1 iflag=fullblock | sha256sum > /shelf/{names[1]}"
    await world.run(f"exec 2>/shelf/{names[1]}.err; {look}", claim, block=True)
    demand(world.read(names[0]) == world.read(names[1]), "the device has not kept what was written to it")


@case(
    "cluster/expand",
    "Kubernetes: expanding a claim",
    "A claim that asks for more gets more, and its data stays.",
    "create",
    "expand",
)
async def expand(world: Whole) -> None:
    claim = await world.claim()
    told = await written(world, claim)
    patch = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    await world.client.patch(PersistentVolumeClaim, claim, NAMESPACE, merge=patch)
    claims = world.client.cache(PersistentVolumeClaim)

    def grown() -> bool:
        found = claims.get(claim, NAMESPACE)
        has = found.status.capacity.get("storage", "0") if found else "0"
        waits = [c.type for c in found.status.conditions] if found else []
        return quantity.value(has) >= 2 << 30 or "FileSystemResizePending" in waits

    await world.until(PersistentVolumeClaim, grown, "the claim has grown, or waits for its node")
    name = world.fresh("size")
    await world.run(f"exec 2>/shelf/{name}.err; {READ.format(name)}", claim)
    demand(world.read(name) == told, "the data is not what was written before the volume grew")
    full = lambda: quantity.value(claims.get(claim, NAMESPACE).status.capacity["storage"]) >= 2 << 30  # noqa: E731
    await world.until(PersistentVolumeClaim, full, "the claim has its new size")


@case(
    "cluster/snapshot and restore",
    "Kubernetes: volume snapshots",
    "A snapshot of a claim becomes ready, and a claim made of it has the data of that moment.",
    "create",
    "snapshot",
)
async def snapshot(world: Whole) -> None:
    claim = await world.claim()
    told = await written(world, claim)
    name = world.fresh("snapshot")
    thing = {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name},
        "spec": {"source": {"persistentVolumeClaimName": claim}, "volumeSnapshotClassName": CLASS},
    }
    await world.make(thing)
    found = world.client.cache(VolumeSnapshot)

    def ready() -> bool:
        made = found.get(name, NAMESPACE)
        return bool(made and made.status and made.status.ready_to_use)

    await world.until(VolumeSnapshot, ready, "the snapshot is ready")
    await written(world, claim)  # something else
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name}
    restored = await world.claim(source=source)
    await same(world, restored, told, "in a claim restored from a snapshot")


@case(
    "cluster/clone",
    "Kubernetes: volume cloning",
    "A claim made of another one has its data.",
    "create",
    "clone",
)
async def clone(world: Whole) -> None:
    claim = await world.claim()
    told = await written(world, claim)
    copy = await world.claim(source={"kind": "PersistentVolumeClaim", "name": claim})
    await same(world, copy, told, "in a clone")


@case(
    "cluster/inline",
    "Kubernetes: CSI ephemeral volumes",
    "A volume that stands in a pod's manifest is there while the pod is.",
    "inline",
)
async def inline(world: Whole) -> None:
    name = world.fresh("inline")
    await world.run(script(WRITE, name), volume={"csi": {"driver": world.name}})
    demand(world.read(name), "the pod has written nothing")
    demand(not (left := await world.left()), f"mounts are left: {left}")


def _methods(world: Whole) -> list[str]:
    return [m for m, needs in CALLS.items() if all(map(world.promises.has, needs)) and "Snapshot" not in m]


@case(
    "cluster/every call lost once",
    "Error Scheme",
    "Each call is lost on its way once: the caller comes again, and the volume's life goes on.",
    "create",
)
async def calls_lost(world: Whole) -> None:
    for method in _methods(world):
        world.tap.cut(method)
    await life(world)


@case(
    "cluster/every answer lost once",
    "Error Scheme",
    "Each call is done and its answer lost once: the same call again finds it done.",
    "create",
)
async def answers_lost(world: Whole) -> None:
    for method in _methods(world):
        world.tap.cut(method, after=True, code=Code.DEADLINE_EXCEEDED)
    await life(world)
    left = await world.left()
    demand(not left, f"mounts are left: {', '.join(left)}")


@case(
    "cluster/every call twice",
    "Error Scheme",
    "Each call is made twice, and nobody notices.",
    "create",
)
async def calls_twice(world: Whole) -> None:
    for method in _methods(world):
        world.tap.twice(method, times=0)
    await life(world)


@case(
    "cluster/slow answers",
    "Timeouts",
    "Each call takes its time, and nothing is done twice at once or forgotten.",
    "create",
)
async def slow(world: Whole) -> None:
    for method in _methods(world):
        world.tap.delay(method, 0.3, times=0)
    await life(world)


@case(
    "cluster/driver killed on the node",
    "Supervised Lifecycle Management",
    "The driver is killed when a volume is to be published; started again, it finishes.",
    "create",
)
async def killed_on_node(world: Whole) -> None:
    async def kill(call: Call) -> None:
        await world.kill_driver("worker-1")

    world.tap.before("NodePublishVolume", kill)
    claim = await world.claim()
    told = await written(world, claim, node="worker-1")
    await same(world, claim, told, "after the driver was killed", node="worker-1")


@case(
    "cluster/driver killed while provisioning",
    "Supervised Lifecycle Management",
    "The controller is killed when it is to make a volume; started again, it makes one and not two.",
    "create",
)
async def killed_while_provisioning(world: Whole) -> None:
    async def kill(call: Call) -> None:
        await world.kill_driver(controller=True)

    world.tap.before("CreateVolume", kill)
    await life(world)


@case(
    "cluster/control plane started again",
    "Kubernetes: everything is in its objects",
    "All of the cluster but the volumes ends and starts again; pods find their data.",
    "create",
)
async def control_plane(world: Whole) -> None:
    claim = await world.claim()
    told = await written(world, claim)
    await world.restart()
    await same(world, claim, told, "after the cluster was started again")
