"""The data sources of volumes: read before the copy, protected during it, released afterwards.

A claim that is cloned and a snapshot that is restored have our finalizer while a claim that copies from them
is Pending. It is added before the driver is called, and cannot be added to an object that is being deleted:
a source is not deleted between the check and the copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import assert_never

from msgspec import Struct

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.errors import APIError, Forbidden, NotFound
from volplane.api.finalizers import CLONING_PROTECTION_FINALIZER, SNAPSHOT_AS_SOURCE_FINALIZER
from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotContent
from volplane.client.cache import Cache
from volplane.client.client import Client
from volplane.loops.controller import Controller, RetryableError
from volplane.loops.crd_wait import wait_until_established
from volplane.loops.events import EventRecorder
from volplane.rules.waits import Wait, WaitData, WaitReason
from volplane.sidecars.base import DriverClient
from volplane.sidecars.provisioner import sources
from volplane.sidecars.provisioner.settings import ProvisionerOptions
from volplane.sidecars.provisioner.sources import CLAIM, SNAPSHOT, SourceContent, SourceObjects

log = logging.getLogger(__name__)


async def serves_snapshots(client: Client) -> bool:
    """The cluster serves VolumeSnapshots, and we may read them."""
    try:
        await client.list_page(VolumeSnapshot, limit=1)
    except (NotFound, Forbidden):
        return False
    return True


async def wait_for_snapshot_crd(client: Client) -> None:
    """Return when the CRD is established; at once without permission to read CRDs."""
    try:
        await wait_until_established(client, "volumesnapshots.snapshot.storage.k8s.io")
    except Forbidden as error:
        log.info("cannot read CRDs, so snapshots are watched only once a claim names one: %s", error)


async def read_source(
    client: Client,
    claim: PersistentVolumeClaim,
    claims: Cache[PersistentVolumeClaim],
    volumes: Cache[PersistentVolume],
) -> SourceObjects:
    wanted = sources.source_reference(claim)
    if wanted is None or not wanted.is_known:
        return SourceObjects()
    if wanted.kind == CLAIM:
        origin = claims.get(wanted.name, wanted.namespace)
        named = origin.spec.volume_name if origin is not None else ""
        return SourceObjects(claim=origin, volume=volumes.get(named) if named else None)
    snapshot = await client.find(VolumeSnapshot, wanted.name, wanted.namespace)
    bound = snapshot.status.bound_volume_snapshot_content_name if snapshot and snapshot.status else ""
    content = await client.find(VolumeSnapshotContent, bound) if bound else None
    return SourceObjects(snapshot=snapshot, content=content)


async def protect(client: Client, content: SourceContent, source: SourceObjects) -> None:
    """Add our finalizer to the source. Raises RetryableError where it is being deleted."""
    held = source.snapshot if content.snapshot else source.claim
    finalizer = SNAPSHOT_AS_SOURCE_FINALIZER if content.snapshot else CLONING_PROTECTION_FINALIZER
    if held is None or finalizer in held.metadata.finalizers:
        return
    try:
        await client.patch(
            type(held),
            held.name,
            held.namespace,
            merge={"metadata": {"finalizers": [*held.metadata.finalizers, finalizer]}},
            uid=held.uid,
            revision=held.metadata.resource_version,
        )
    except Forbidden as error:
        if not content.snapshot:
            raise RetryableError(
                f"the claim {held.key} cannot be protected while it is cloned: {error}"
            ) from error
        # RBAC rules older than this finalizer: go on without it, as provisioners did then.
        log.warning("snapshot %s is not protected while it is restored: %s", held.key, error)
    except APIError as error:
        raise RetryableError(
            f"the source {held.key} cannot be protected while it is copied: {error}"
        ) from error


class SourceView(Struct, frozen=True):
    """A claim or snapshot that volumes are copied from."""

    kind: str
    namespace: str
    name: str
    copied_by: Sequence[str]  # Pending claims that copy from it
    claim: PersistentVolumeClaim | None = None


class ReleaseClaim(Struct, frozen=True):
    """Remove our finalizer from a claim that was cloned."""

    claim: PersistentVolumeClaim


class ReleaseSnapshot(Struct, frozen=True):
    """Read the snapshot and remove our finalizer, if it has it."""


class SourceProtection(Controller[str, SourceView, ReleaseClaim | ReleaseSnapshot]):
    """Removes the finalizers from sources; its keys are those of `sources.SourceReference`."""

    name = "csi-provisioner-sources"

    def __init__(
        self, client: Client, driver: DriverClient, settings: ProvisionerOptions, *, events: EventRecorder
    ) -> None:
        super().__init__(client, events=events, workers=max(1, settings.cloning_protection_threads))
        self.restores = "CREATE_DELETE_SNAPSHOT" in driver.controller
        self.sweep = settings.snapshot_orphan_sweep_interval if self.restores else 0.0

    def setup(self) -> None:
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim)
        self.waiting = self.claims.index("source", sources.source_keys)

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        if new is not None and new.is_deleting and CLONING_PROTECTION_FINALIZER in new.metadata.finalizers:
            yield f"{CLAIM}/{new.key}"
        before = sources.source_keys(old) if old is not None else []
        after = sources.source_keys(new) if new is not None else []
        if old is None and new is not None and not after:
            wanted = sources.source_reference(new)
            after = [wanted.key] if wanted is not None else []  # it may have been bound while we did not run
            yield from after
        yield from (key for key in before if key not in after)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            sweeping = group.create_task(self._sweep()) if self.sweep else None
            try:
                await super().run()
            finally:
                if sweeping is not None:
                    sweeping.cancel()

    def view(self, key: str) -> SourceView:
        kind, namespace, name = key.split("/", 2)
        copied_by = sorted(claim.name for claim in self.waiting[key])
        claim = self.claims.get(name, namespace) if kind == CLAIM else None
        return SourceView(kind, namespace, name, copied_by, claim)

    def plan(self, view: SourceView) -> Iterator[ReleaseClaim | ReleaseSnapshot | Wait]:
        claim = view.claim
        if view.copied_by:
            yield Wait(WaitReason.SOURCE_IN_USE, WaitData(claims=tuple(view.copied_by)))
        elif view.kind == SNAPSHOT and self.restores:
            yield ReleaseSnapshot()
        elif (
            claim is not None
            and claim.is_deleting
            and CLONING_PROTECTION_FINALIZER in claim.metadata.finalizers
        ):
            yield ReleaseClaim(claim)

    async def act(self, key: str, view: SourceView, step: ReleaseClaim | ReleaseSnapshot) -> None:
        match step:
            case ReleaseClaim(claim):
                await self._remove_finalizer(claim, CLONING_PROTECTION_FINALIZER)
            case ReleaseSnapshot():
                snapshot = await self.client.find(VolumeSnapshot, view.name, view.namespace)
                if snapshot is not None and SNAPSHOT_AS_SOURCE_FINALIZER in snapshot.metadata.finalizers:
                    await self._remove_finalizer(snapshot, SNAPSHOT_AS_SOURCE_FINALIZER)
            case _:
                assert_never(step)

    async def _remove_finalizer(self, held: PersistentVolumeClaim | VolumeSnapshot, finalizer: str) -> None:
        left = [f for f in held.metadata.finalizers if f != finalizer]
        await self.client.patch(
            type(held),
            held.name,
            held.namespace,
            merge={"metadata": {"finalizers": left or None}},
            uid=held.uid,
            revision=held.metadata.resource_version,
            missing_ok=True,
        )

    async def _sweep(self) -> None:
        """Wake snapshots whose claims were bound or deleted while no provisioner ran."""
        await self.client.cache(PersistentVolumeClaim).wait_synced()
        while True:
            try:
                for snapshot in await self.client.list(VolumeSnapshot):
                    if SNAPSHOT_AS_SOURCE_FINALIZER in snapshot.metadata.finalizers:
                        self.queue.add(f"{SNAPSHOT}/{snapshot.key}")
            except APIError as error:
                log.debug("cannot list snapshots: %s", error)
            await asyncio.sleep(self.sweep)
