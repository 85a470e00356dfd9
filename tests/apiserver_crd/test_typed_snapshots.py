"""Snapshots are custom resources to the server, and typed objects to our controllers."""

from __future__ import annotations

import pytest

from tests.loops.inprocess import InProcessEnv, world
from tests.support.snapshots import definitions
from volplane.api import kinds
from volplane.api.errors import NotFound
from volplane.api.meta import ObjectMeta
from volplane.api.snapshot import (
    VolumeSnapshot,
    VolumeSnapshotSource,
    VolumeSnapshotSpec,
    VolumeSnapshotStatus,
)


async def define(w: InProcessEnv) -> None:
    for definition in definitions():
        await w.client.create(definition)


def snapshot(name: str = "before") -> VolumeSnapshot:
    source = VolumeSnapshotSource(persistent_volume_claim_name="data")
    return VolumeSnapshot(
        metadata=ObjectMeta(name=name, namespace="default"), spec=VolumeSnapshotSpec(source=source)
    )


async def test_a_kind_that_is_not_defined_is_not_found() -> None:
    async with world() as w:
        with pytest.raises(NotFound):
            await w.client.list(VolumeSnapshot)


async def test_every_verb_uses_typed_objects() -> None:
    async with world() as w:
        await define(w)
        made = await w.client.create(snapshot())
        assert made.uid
        assert made.spec.source.persistent_volume_claim_name == "data"
        assert (await w.client.get(VolumeSnapshot, "before", "default")) == made
        ready = {"status": {"readyToUse": True, "restoreSize": "1Gi"}}
        patched = await w.client.patch(VolumeSnapshot, "before", "default", merge=ready, subresource="status")
        assert patched is not None
        assert patched.status == VolumeSnapshotStatus(ready_to_use=True, restore_size="1Gi")
        cache = w.client.cache(VolumeSnapshot)
        await cache.wait_synced()
        assert cache.all() == [patched]
        marked = await w.client.patch(
            VolumeSnapshot, "before", "default", merge={"metadata": {"labels": {"a": "b"}}}
        )
        assert marked is not None
        await cache.wait_for(marked.revision)
        seen = cache.get("before", "default")
        assert seen is not None
        assert seen.metadata.labels == {"a": "b"}
        await w.client.delete(VolumeSnapshot, "before", "default")
        assert await w.client.find(VolumeSnapshot, "before", "default") is None


def test_the_types_match_the_definitions() -> None:
    defined = {
        (d.spec.group, d.spec.names.plural): (
            d.spec.names.kind,
            tuple(d.spec.names.short_names),
            d.spec.scope,
        )
        for d in definitions()
    }
    for kind in kinds.CLIENT_KINDS:
        scope = "Namespaced" if kind.namespaced else "Cluster"
        assert defined[kind.group, kind.plural] == (kind.kind, kind.short_names, scope)
