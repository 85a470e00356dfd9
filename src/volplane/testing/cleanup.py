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
    from volplane.testing.cluster_env import ClusterEnv

NAMESPACE = "default"


async def delete_all(world: ClusterEnv) -> None:
    """Until it is gone; ends with the case's own time."""
    volumes = _volumes_of_claims(world)
    await _delete(world, Pod, VolumeGroupSnapshot, VolumeSnapshot)
    await world.wait_until_unused(volumes, lambda: _wait_until_gone(world, Pod, "the case's pods are gone"))
    await _delete(world, PersistentVolumeClaim)
    await _wait_until_gone(world, Pod, "the case's pods are gone")
    await _wait_until_gone(world, PersistentVolumeClaim, "its claims are gone")
    volumes |= _volumes_of_claims(world)
    known = world.client.cache(PersistentVolume)
    await world.until(PersistentVolume, lambda: not any(map(known.get, volumes)), "its volumes are gone")
    if groups := world.created_names(VolumeGroupSnapshot):
        await wait_for_groups_gone(world, groups)
    if snapshots := world.created_names(VolumeSnapshot):
        await wait_for_snapshots_gone(world, snapshots)
    await world.wait_until_detached(volumes)


async def _delete(world: ClusterEnv, *kinds: type[Resource]) -> None:
    for kind in kinds:
        for name in sorted(world.created_names(kind)):
            await world.delete(kind, name)


async def _wait_until_gone(world: ClusterEnv, kind: type[Resource], what: str) -> None:
    mine, cache = world.created_names(kind), world.client.cache(kind)
    await world.until(kind, lambda: not any(cache.get(name, NAMESPACE) for name in mine), what)


async def wait_for_snapshots_gone(world: ClusterEnv, names: Collection[str]) -> None:
    contents = world.client.cache(VolumeSnapshotContent)
    await world.until(
        VolumeSnapshotContent,
        lambda: not any(c.spec.volume_snapshot_ref.name in names for c in contents.all()),
        "the snapshots are gone",
    )


async def wait_for_groups_gone(world: ClusterEnv, names: Collection[str]) -> None:
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


def _volumes_of_claims(world: ClusterEnv) -> set[str]:
    """Of the case's claims."""
    mine = world.created_names(PersistentVolumeClaim)
    found = world.client.cache(PersistentVolume).all()
    return {v.name for v in found if v.spec.claim_ref is not None and v.spec.claim_ref.name in mine}
