"""What a case has made in a cluster is deleted, until it is gone: objects, volumes, snapshots, groups."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.meta import Resource
from volplane.api.snapshot import (
    VolumeGroupSnapshot,
    VolumeGroupSnapshotContent,
    VolumeSnapshot,
    VolumeSnapshotContent,
)

if TYPE_CHECKING:
    from volplane.testing.whole import Whole

NAMESPACE = "default"


async def clear(world: Whole) -> None:
    """Until it is gone; ends with the case's own time."""
    volumes = _volumes(world)
    await _delete(world, Pod, VolumeGroupSnapshot, VolumeSnapshot)
    await world.unused(volumes, lambda: _gone(world, Pod, "the case's pods are gone"))
    await _delete(world, PersistentVolumeClaim)
    await _gone(world, Pod, "the case's pods are gone")
    await _gone(world, PersistentVolumeClaim, "its claims are gone")
    volumes |= _volumes(world)
    known = world.client.cache(PersistentVolume)
    await world.until(PersistentVolume, lambda: not any(map(known.get, volumes)), "its volumes are gone")
    if groups := world.made_of(VolumeGroupSnapshot):
        await groups_gone(world, groups)
    if snapshots := world.made_of(VolumeSnapshot):
        await snapshots_gone(world, snapshots)
    await world.detached(volumes)


async def _delete(world: Whole, *kinds: type[Resource]) -> None:
    for kind in kinds:
        for name in sorted(world.made_of(kind)):
            await world.delete(kind, name)


async def _gone(world: Whole, kind: type[Resource], what: str) -> None:
    mine, cache = world.made_of(kind), world.client.cache(kind)
    await world.until(kind, lambda: not any(cache.get(name, NAMESPACE) for name in mine), what)


async def snapshots_gone(world: Whole, names: Collection[str]) -> None:
    contents = world.client.cache(VolumeSnapshotContent)
    await world.until(
        VolumeSnapshotContent,
        lambda: not any(c.spec.volume_snapshot_ref.name in names for c in contents.all()),
        "the snapshots are gone",
    )


async def groups_gone(world: Whole, names: Collection[str]) -> None:
    """With all that is in them."""
    contents, snapshots = world.client.cache(VolumeGroupSnapshotContent), world.client.cache(VolumeSnapshot)
    await world.until(
        VolumeGroupSnapshotContent,
        lambda: not any(c.spec.volume_group_snapshot_ref.name in names for c in contents.all()),
        "the groups of snapshots are gone",
    )
    is_member = members_of(names)
    await world.until(
        VolumeSnapshot, lambda: not any(map(is_member, snapshots.all())), "the snapshots of groups are gone"
    )


def members_of(groups: Collection[str]) -> Callable[[VolumeSnapshot], bool]:
    return lambda one: any(owner.name in groups for owner in one.metadata.owner_references)


def _volumes(world: Whole) -> set[str]:
    """Of the case's claims."""
    mine = world.made_of(PersistentVolumeClaim)
    found = world.client.cache(PersistentVolume).all()
    return {v.name for v in found if v.spec.claim_ref is not None and v.spec.claim_ref.name in mine}
