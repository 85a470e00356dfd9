"""Delete what a case has created in a cluster, and wait until it is gone."""

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


async def delete_all(env: ClusterEnv) -> None:
    """Delete everything and wait; limited by the timeout of the case."""
    volumes = _volumes_of_claims(env)
    await _delete(env, Pod, VolumeGroupSnapshot, VolumeSnapshot)
    await env.wait_until_unused(volumes, lambda: _wait_until_gone(env, Pod, "the case's pods are gone"))
    await _delete(env, PersistentVolumeClaim)
    await _wait_until_gone(env, Pod, "the case's pods are gone")
    await _wait_until_gone(env, PersistentVolumeClaim, "its claims are gone")
    volumes |= _volumes_of_claims(env)
    await env.delete_given(env.created_names(PersistentVolume))
    known = env.client.cache(PersistentVolume)
    await env.until(PersistentVolume, lambda: not any(map(known.get, volumes)), "its volumes are gone")
    if groups := env.created_names(VolumeGroupSnapshot):
        await wait_for_groups_gone(env, groups)
    if snapshots := env.created_names(VolumeSnapshot):
        await wait_for_snapshots_gone(env, snapshots)
    await env.wait_until_detached(volumes)


async def _delete(env: ClusterEnv, *kinds: type[Resource]) -> None:
    for kind in kinds:
        for name in sorted(env.created_names(kind)):
            await env.delete(kind, name)


async def _wait_until_gone(env: ClusterEnv, kind: type[Resource], what: str) -> None:
    mine, cache = env.created_names(kind), env.client.cache(kind)
    await env.until(kind, lambda: not any(cache.get(name, NAMESPACE) for name in mine), what)


async def wait_for_snapshots_gone(env: ClusterEnv, names: Collection[str]) -> None:
    contents = env.client.cache(VolumeSnapshotContent)
    await env.until(
        VolumeSnapshotContent,
        lambda: not any(c.spec.volume_snapshot_ref.name in names for c in contents.all()),
        "the snapshots are gone",
    )


async def wait_for_groups_gone(env: ClusterEnv, names: Collection[str]) -> None:
    """Wait until the groups and their snapshots are gone."""
    contents, snapshots = env.client.cache(VolumeGroupSnapshotContent), env.client.cache(VolumeSnapshot)
    await env.until(
        VolumeGroupSnapshotContent,
        lambda: not any(c.spec.volume_group_snapshot_ref.name in names for c in contents.all()),
        "the groups of snapshots are gone",
    )
    is_member = members_of(names)
    await env.until(
        VolumeSnapshot, lambda: not any(map(is_member, snapshots.all())), "the snapshots of groups are gone"
    )


def members_of(groups: Collection[str]) -> Callable[[VolumeSnapshot], bool]:
    return lambda one: any(owner.name in groups for owner in one.metadata.owner_references)


def _volumes_of_claims(env: ClusterEnv) -> set[str]:
    """The names of the volumes of the case's claims."""
    mine = env.created_names(PersistentVolumeClaim)
    found = env.client.cache(PersistentVolume).all()
    return {v.name for v in found if v.spec.claim_ref is not None and v.spec.claim_ref.name in mine}
