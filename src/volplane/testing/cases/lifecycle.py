"""Lives of volumes in a cluster, as checksums see them: a pod writes, another one reads, all is deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from volplane.api import quantity
from volplane.api.core import PersistentVolumeClaim
from volplane.api.snapshot import VolumeGroupSnapshot, VolumeSnapshot
from volplane.testing import call_audit, cleanup, specs
from volplane.testing.case import require
from volplane.testing.cases import faults
from volplane.testing.cleanup import NAMESPACE
from volplane.testing.cluster_env import ClusterEnv

# What the container writes and what it finds, as checksums on the shelf; its errors go there, too.
WRITE = "head -c 1048576 /dev/urandom > /data/f && sync && sha256sum < /data/f > /shelf/{0}"
READ = "sha256sum < /data/f > /shelf/{0}"
# In a cluster a claim grows whether or not a pod uses it, and a group that is ready is not asked for again.
CALLS = {
    **{method: needs for method, needs in faults.CALLS.items() if not method.startswith("Get")},
    "ControllerExpandVolume": ("expand-controller",),
    "NodeExpandVolume": ("expand-controller", "expand-node"),
}
STAY = "trap 'exit 0' TERM; sleep 3600 & wait"


def _printing_checksum(text: str, name: str) -> str:
    return f"exec 2>/shelf/{name}.err; " + text.format(name)


async def checksum_in_pod(world: ClusterEnv, text: str, claim: str = "", **more: Any) -> str:
    """What a pod that ran the text has put on the shelf; `{0}` in it is the place."""
    name = world.new_name("found")
    await world.run(_printing_checksum(text, name), claim, **more)
    return world.read(name)


async def write_in_pod(world: ClusterEnv, claim: str = "", **more: Any) -> str:
    """A pod writes; the checksum."""
    told = await checksum_in_pod(world, WRITE, claim, **more)
    require(told, "the pod has written nothing")
    return told


async def stays(world: ClusterEnv, claim: str = "", *, script: str = STAY, **more: Any) -> tuple[str, str]:
    """A pod that has written, and goes on with the volume; its name and the checksum."""
    name = world.new_name("stays")
    pod = await world.pod(script, claim, first=_printing_checksum(WRITE, name), **more)
    await world.wait_until_running(pod)  # which it does when its first container has ended well
    told = world.read(name)
    require(told, f"the pod has written nothing: {world.read(f'{name}.err')}")
    return pod, told


async def same(
    world: ClusterEnv, claim: str, told: str, when: str, *, section: str = "", **more: Any
) -> None:
    """Another pod reads what was written."""
    now = await checksum_in_pod(world, READ, claim, **more)
    require(now == told, f"the data is not what was written, {when}: {now}, was {told}", section=section)


async def life(world: ClusterEnv, *methods: str, when: str = "in the next pod") -> None:
    """From nothing to nothing; the parts that none of the methods needs are left out."""
    labels = together(world)
    claim = await world.claim(labels=labels)
    told = await write_in_pod(world, claim)
    if any("Group" in method for method in methods):
        group_, members = await group(world, labels, {claim})
        await same(world, await restore_snapshot(world, members[claim]), told, "in a claim of its group")
        await group_gone(world, group_)
    if any("Modify" in method for method in methods):
        await modify_claim(world, claim)
    if set(methods) & set(faults.SNAPSHOTS):
        made = await snapshot(world, claim)
        await same(world, await restore_snapshot(world, made), told, "in a claim of its snapshot")
        await snapshot_gone(world, made)
    grows = any("Expand" in method for method in methods)
    if grows:
        await ask_for_more(world, claim)
    await same(world, claim, told, when)
    if grows:
        await has_more(world, claim)
    await world.clear()


async def snapshot(world: ClusterEnv, claim: str) -> str:
    """Of the claim, when it is ready."""
    name = world.new_name("snapshot")
    await world.make(specs.snapshot(name, claim))
    known = world.client.cache(VolumeSnapshot)

    def ready() -> bool:
        made = known.get(name, NAMESPACE)
        return bool(made and made.status and made.status.ready_to_use)

    await world.until(VolumeSnapshot, ready, "the snapshot is ready")
    return name


async def restore_snapshot(world: ClusterEnv, snapshot: str) -> str:
    """A claim made of it."""
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot}
    return await world.claim(source=source)


async def snapshot_gone(world: ClusterEnv, name: str) -> None:
    await world.delete(VolumeSnapshot, name)
    await cleanup.wait_for_snapshots_gone(world, {name})


def together(world: ClusterEnv) -> dict[str, str]:
    """Labels of claims that a group is made of."""
    return {"volplane-test": world.new_name("together")}


async def group(world: ClusterEnv, labels: Mapping[str, str], claims: set[str]) -> tuple[str, dict[str, str]]:
    """Of the claims with the labels, when it is ready; its snapshots by claim."""
    name = world.new_name("group")
    await world.make(specs.group(name, labels))
    snapshots, is_member = world.client.cache(VolumeSnapshot), cleanup.members_of({name})

    def ready() -> dict[str, str]:
        members = [s for s in snapshots.all() if is_member(s) and s.status and s.status.ready_to_use]
        return {s.spec.source.persistent_volume_claim_name or "": s.name for s in members}

    await world.until(
        VolumeSnapshot, lambda: ready().keys() >= claims, "each claim has a snapshot in the group"
    )
    groups = world.client.cache(VolumeGroupSnapshot)

    def whole() -> bool:
        made = groups.get(name, NAMESPACE)
        return bool(made and made.status and made.status.ready_to_use)

    await world.until(VolumeGroupSnapshot, whole, "the group is ready")
    found = ready()
    require(found.keys() == claims, f"a group of {sorted(claims)} has snapshots of {sorted(found)}")
    return name, found


async def group_gone(world: ClusterEnv, name: str) -> None:
    await world.delete(VolumeGroupSnapshot, name)
    await cleanup.wait_for_groups_gone(world, {name})


async def modify_claim(world: ClusterEnv, claim: str) -> None:
    """Until the volume of the claim is of the class that it names."""
    patch = {"spec": {"volumeAttributesClassName": specs.CLASS}}
    await world.ask(lambda: world.client.patch(PersistentVolumeClaim, claim, NAMESPACE, merge=patch))
    claims = world.client.cache(PersistentVolumeClaim)

    def is_so() -> bool:
        mine = claims.get(claim, NAMESPACE)
        return mine is not None and mine.status.current_volume_attributes_class_name == specs.CLASS

    await world.until(PersistentVolumeClaim, is_so, "the volume has its new parameters")


async def ask_for_more(world: ClusterEnv, claim: str) -> None:
    """Until the claim has it, or waits for a node to use it."""
    patch = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    await world.ask(lambda: world.client.patch(PersistentVolumeClaim, claim, NAMESPACE, merge=patch))
    claims = world.client.cache(PersistentVolumeClaim)

    def grown() -> bool:
        mine = claims.get(claim, NAMESPACE)
        waits = [c.type for c in mine.status.conditions] if mine else []
        return _has_more(mine) or "FileSystemResizePending" in waits

    await world.until(PersistentVolumeClaim, grown, "the claim has grown, or waits for its node")


async def has_more(world: ClusterEnv, claim: str) -> None:
    claims = world.client.cache(PersistentVolumeClaim)
    await world.until(
        PersistentVolumeClaim, lambda: _has_more(claims.get(claim, NAMESPACE)), "the claim has its new size"
    )


def _has_more(claim: PersistentVolumeClaim | None) -> bool:
    return claim is not None and quantity.value(claim.status.capacity.get("storage", "0")) >= 2 << 30


@asynccontextmanager
async def expect_nothing_left(world: ClusterEnv) -> AsyncIterator[None]:
    """What is made inside is made once, is in one place at a time, and is gone at the end."""
    before, first = await world.take_inventory(), world.tap.mark()
    yield
    after = await world.take_inventory()
    for wrong in (*call_audit.audit_calls(world.tap.since(first)), *after.left_since(before)):
        require(False, wrong.what, section=wrong.section)
