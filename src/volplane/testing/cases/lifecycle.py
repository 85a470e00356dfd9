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
SLEEP = "trap 'exit 0' TERM; sleep 3600 & wait"


def _with_error_file(text: str, name: str) -> str:
    return f"exec 2>/shelf/{name}.err; " + text.format(name)


async def checksum_in_pod(world: ClusterEnv, text: str, claim: str = "", **more: Any) -> str:
    """What a pod that ran the text has put on the shelf; `{0}` in it is the place."""
    name = world.new_name("found")
    await world.run(_with_error_file(text, name), claim, **more)
    return world.read(name)


async def write_in_pod(world: ClusterEnv, claim: str = "", **more: Any) -> str:
    """A pod writes; the checksum."""
    told = await checksum_in_pod(world, WRITE, claim, **more)
    require(told, "the pod has written nothing")
    return told


async def start_writer_pod(
    world: ClusterEnv, claim: str = "", *, script: str = SLEEP, **more: Any
) -> tuple[str, str]:
    """A pod that has written, and goes on with the volume; its name and the checksum."""
    name = world.new_name("stays")
    pod = await world.pod(script, claim, first=_with_error_file(WRITE, name), **more)
    await world.wait_until_running(pod)  # which it does when its first container has ended well
    told = world.read(name)
    require(told, f"the pod has written nothing: {world.read(f'{name}.err')}")
    return pod, told


async def expect_same_data(
    world: ClusterEnv, claim: str, written: str, when: str, *, section: str = "", **more: Any
) -> None:
    """Another pod reads what was written."""
    now = await checksum_in_pod(world, READ, claim, **more)
    require(
        now == written, f"the data is not what was written, {when}: {now}, was {written}", section=section
    )


async def run_lifecycle(world: ClusterEnv, *methods: str, when: str = "in the next pod") -> None:
    """From nothing to nothing; the parts that none of the methods needs are left out."""
    labels = new_group_labels(world)
    claim = await world.claim(labels=labels)
    told = await write_in_pod(world, claim)
    if any("Group" in method for method in methods):
        group_, members = await group_snapshot(world, labels, {claim})
        await expect_same_data(
            world, await restore_snapshot(world, members[claim]), told, "in a claim of its group"
        )
        await delete_group(world, group_)
    if any("Modify" in method for method in methods):
        await modify_claim(world, claim)
    if set(methods) & set(faults.SNAPSHOTS):
        made = await snapshot(world, claim)
        await expect_same_data(world, await restore_snapshot(world, made), told, "in a claim of its snapshot")
        await delete_snapshot(world, made)
    grows = any("Expand" in method for method in methods)
    if grows:
        await expand_claim(world, claim)
    await expect_same_data(world, claim, told, when)
    if grows:
        await wait_until_expanded(world, claim)
    await world.delete_created()


async def snapshot(world: ClusterEnv, claim: str) -> str:
    """Of the claim, when it is ready."""
    name = world.new_name("snapshot")
    await world.create(specs.snapshot(name, claim))
    known = world.client.cache(VolumeSnapshot)

    def is_ready() -> bool:
        made = known.get(name, NAMESPACE)
        return bool(made and made.status and made.status.ready_to_use)

    await world.until(VolumeSnapshot, is_ready, "the snapshot is ready")
    return name


async def restore_snapshot(world: ClusterEnv, snapshot: str) -> str:
    """A claim made of it."""
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot}
    return await world.claim(source=source)


async def delete_snapshot(world: ClusterEnv, name: str) -> None:
    await world.delete(VolumeSnapshot, name)
    await cleanup.wait_for_snapshots_gone(world, {name})


def new_group_labels(world: ClusterEnv) -> dict[str, str]:
    """Labels of claims that a group is made of."""
    return {"volplane-test": world.new_name("together")}


async def group_snapshot(
    world: ClusterEnv, labels: Mapping[str, str], claims: set[str]
) -> tuple[str, dict[str, str]]:
    """Of the claims with the labels, when it is ready; its snapshots by claim."""
    name = world.new_name("group")
    await world.create(specs.group(name, labels))
    snapshots, is_member = world.client.cache(VolumeSnapshot), cleanup.members_of({name})

    def ready_members() -> dict[str, str]:
        members = [s for s in snapshots.all() if is_member(s) and s.status and s.status.ready_to_use]
        return {s.spec.source.persistent_volume_claim_name or "": s.name for s in members}

    await world.until(
        VolumeSnapshot, lambda: ready_members().keys() >= claims, "each claim has a snapshot in the group"
    )
    groups = world.client.cache(VolumeGroupSnapshot)

    def group_is_ready() -> bool:
        made = groups.get(name, NAMESPACE)
        return bool(made and made.status and made.status.ready_to_use)

    await world.until(VolumeGroupSnapshot, group_is_ready, "the group is ready")
    found = ready_members()
    require(found.keys() == claims, f"a group of {sorted(claims)} has snapshots of {sorted(found)}")
    return name, found


async def delete_group(world: ClusterEnv, name: str) -> None:
    await world.delete(VolumeGroupSnapshot, name)
    await cleanup.wait_for_groups_gone(world, {name})


async def modify_claim(world: ClusterEnv, claim: str) -> None:
    """Until the volume of the claim is of the class that it names."""
    patch = {"spec": {"volumeAttributesClassName": specs.CLASS}}
    await world.request(lambda: world.client.patch(PersistentVolumeClaim, claim, NAMESPACE, merge=patch))
    claims = world.client.cache(PersistentVolumeClaim)

    def has_class() -> bool:
        mine = claims.get(claim, NAMESPACE)
        return mine is not None and mine.status.current_volume_attributes_class_name == specs.CLASS

    await world.until(PersistentVolumeClaim, has_class, "the volume has its new parameters")


async def expand_claim(world: ClusterEnv, claim: str) -> None:
    """Until the claim has it, or waits for a node to use it."""
    patch = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    await world.request(lambda: world.client.patch(PersistentVolumeClaim, claim, NAMESPACE, merge=patch))
    claims = world.client.cache(PersistentVolumeClaim)

    def has_grown() -> bool:
        mine = claims.get(claim, NAMESPACE)
        waits = [c.type for c in mine.status.conditions] if mine else []
        return _is_expanded(mine) or "FileSystemResizePending" in waits

    await world.until(PersistentVolumeClaim, has_grown, "the claim has grown, or waits for its node")


async def wait_until_expanded(world: ClusterEnv, claim: str) -> None:
    claims = world.client.cache(PersistentVolumeClaim)
    await world.until(
        PersistentVolumeClaim,
        lambda: _is_expanded(claims.get(claim, NAMESPACE)),
        "the claim has its new size",
    )


def _is_expanded(claim: PersistentVolumeClaim | None) -> bool:
    return claim is not None and quantity.value(claim.status.capacity.get("storage", "0")) >= 2 << 30


@asynccontextmanager
async def expect_nothing_left(world: ClusterEnv) -> AsyncIterator[None]:
    """What is made inside is made once, is in one place at a time, and is gone at the end."""
    before, first = await world.take_inventory(), world.tap.mark()
    yield
    after = await world.take_inventory()
    for wrong in (*call_audit.audit_calls(world.tap.since(first)), *after.leftovers_since(before)):
        require(False, wrong.what, section=wrong.section)
