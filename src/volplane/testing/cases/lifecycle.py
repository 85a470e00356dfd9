"""Lifecycles of volumes in a cluster: a pod writes, another one compares checksums, everything is deleted."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from volplane.api import quantity
from volplane.api.core import PersistentVolumeClaim
from volplane.api.snapshot import VolumeGroupSnapshot, VolumeSnapshot
from volplane.base.tasks import background
from volplane.testing import call_audit, cleanup, specs
from volplane.testing.case import CaseFailure, NotSupported, require
from volplane.testing.cases import faults
from volplane.testing.cases.expand import CANNOT_GROW, may_grow_mounted_ext
from volplane.testing.cleanup import NAMESPACE
from volplane.testing.cluster_env import ClusterEnv

# A container writes data, and checksums and errors to the results directory.
WRITE = "head -c 1048576 /dev/urandom > /data/f && sync && sha256sum < /data/f > /results/{0}"
READ = "sha256sum < /data/f > /results/{0}"
# In a cluster a claim is expanded whether or not a pod uses it, if its class allows that, and a ready group
# is not queried again.
CALLS = {
    **{method: needs for method, needs in faults.CALLS.items() if not method.startswith("Get")},
    "ControllerExpandVolume": ("expand-controller", "expand-claim"),
    "NodeExpandVolume": ("expand-controller", "expand-node", "expand-claim"),
}
NOT_PERMITTED = "Permission denied to resize filesystem"  # resize2fs, of a mounted ext4
PATIENCE = 0.8  # of the timeout of a case, for a file system that this machine has not let grow
SLEEP = "trap 'exit 0' TERM; sleep 3600 & wait"


def _with_error_file(text: str, name: str) -> str:
    return f"exec 2>/results/{name}.err; " + text.format(name)


async def checksum_in_pod(env: ClusterEnv, text: str, claim: str = "", **more: Any) -> str:
    """Run the script in a pod and return its result; `{0}` in the script is the name of the result file."""
    name = env.new_name("found")
    await env.run(_with_error_file(text, name), claim, **more)
    return env.read(name)


async def write_in_pod(env: ClusterEnv, claim: str = "", **more: Any) -> str:
    """Write data in a pod; returns its checksum."""
    written = await checksum_in_pod(env, WRITE, claim, **more)
    require(written, "the pod has written nothing")
    return written


async def start_writer_pod(
    env: ClusterEnv, claim: str = "", *, script: str = SLEEP, **more: Any
) -> tuple[str, str]:
    """Start a pod that writes data and keeps running; returns its name and the checksum."""
    name = env.new_name("stays")
    pod = await env.pod(script, claim, first=_with_error_file(WRITE, name), **more)
    await env.wait_until_running(pod)  # after its init container has succeeded
    written = env.read(name)
    require(written, f"the pod has written nothing: {env.read(f'{name}.err')}")
    return pod, written


async def expect_same_data(
    env: ClusterEnv, claim: str, written: str, when: str, *, section: str = "", **more: Any
) -> None:
    """Raise CaseFailure unless another pod reads the written data."""
    now = await checksum_in_pod(env, READ, claim, **more)
    require(
        now == written, f"the data is not what was written, {when}: {now}, was {written}", section=section
    )


async def run_lifecycle(env: ClusterEnv, *methods: str, when: str = "in the next pod") -> None:
    """Run a lifecycle from create to delete, without the parts that none of the methods needs."""
    labels = new_group_labels(env)
    claim = await env.claim(labels=labels)
    written = await write_in_pod(env, claim)
    if any("Group" in method for method in methods):
        group_, members = await group_snapshot(env, labels, {claim})
        await expect_same_data(
            env, await restore_snapshot(env, members[claim]), written, "in a claim of its group"
        )
        await delete_group(env, group_)
    if any("Modify" in method for method in methods):
        await modify_claim(env, claim)
    if set(methods) & set(faults.SNAPSHOTS):
        made = await snapshot(env, claim)
        await expect_same_data(env, await restore_snapshot(env, made), written, "in a claim of its snapshot")
        await delete_snapshot(env, made)
    grows = any("Expand" in method for method in methods)
    if grows:
        await expand_claim(env, claim)
    await expect_same_data(env, claim, written, when)
    if grows:
        await wait_until_expanded(env, claim)
    await env.delete_created()


async def snapshot(env: ClusterEnv, claim: str) -> str:
    """Create a snapshot of the claim, and wait until it is ready."""
    name = env.new_name("snapshot")
    await env.create(specs.snapshot(name, claim))
    known = env.client.cache(VolumeSnapshot)

    def is_ready() -> bool:
        made = known.get(name, NAMESPACE)
        return bool(made and made.status and made.status.ready_to_use)

    await env.until(VolumeSnapshot, is_ready, "the snapshot is ready")
    return name


async def restore_snapshot(env: ClusterEnv, snapshot: str) -> str:
    """Create a claim from the snapshot."""
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot}
    return await env.claim(source=source)


async def delete_snapshot(env: ClusterEnv, name: str) -> None:
    await env.delete(VolumeSnapshot, name)
    await cleanup.wait_for_snapshots_gone(env, {name})


def new_group_labels(env: ClusterEnv) -> dict[str, str]:
    """New labels for the claims of a group."""
    return {"volplane-test": env.new_name("together")}


async def group_snapshot(
    env: ClusterEnv, labels: Mapping[str, str], claims: set[str]
) -> tuple[str, dict[str, str]]:
    """Create a group snapshot of the claims with the labels, and wait; returns its snapshots by claim."""
    name = env.new_name("group")
    await env.create(specs.group(name, labels))
    snapshots, is_member = env.client.cache(VolumeSnapshot), cleanup.members_of({name})

    def ready_members() -> dict[str, str]:
        members = [s for s in snapshots.all() if is_member(s) and s.status and s.status.ready_to_use]
        return {s.spec.source.persistent_volume_claim_name or "": s.name for s in members}

    await env.until(
        VolumeSnapshot, lambda: ready_members().keys() >= claims, "each claim has a snapshot in the group"
    )
    groups = env.client.cache(VolumeGroupSnapshot)

    def group_is_ready() -> bool:
        made = groups.get(name, NAMESPACE)
        return bool(made and made.status and made.status.ready_to_use)

    await env.until(VolumeGroupSnapshot, group_is_ready, "the group is ready")
    found = ready_members()
    require(found.keys() == claims, f"a group of {sorted(claims)} has snapshots of {sorted(found)}")
    return name, found


async def delete_group(env: ClusterEnv, name: str) -> None:
    await env.delete(VolumeGroupSnapshot, name)
    await cleanup.wait_for_groups_gone(env, {name})


async def modify_claim(env: ClusterEnv, claim: str) -> None:
    """Change the claim's VolumeAttributesClass, and wait until the volume has it."""
    patch = {"spec": {"volumeAttributesClassName": specs.CLASS}}
    await env.request(lambda: env.client.patch(PersistentVolumeClaim, claim, NAMESPACE, merge=patch))
    claims = env.client.cache(PersistentVolumeClaim)

    def has_class() -> bool:
        mine = claims.get(claim, NAMESPACE)
        return mine is not None and mine.status.current_volume_attributes_class_name == specs.CLASS

    await env.until(PersistentVolumeClaim, has_class, "the volume has its new parameters")


async def expand_claim(env: ClusterEnv, claim: str) -> None:
    """Expand the claim, and wait until it has the size or waits for its node."""
    patch = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    await env.request(lambda: env.client.patch(PersistentVolumeClaim, claim, NAMESPACE, merge=patch))
    claims = env.client.cache(PersistentVolumeClaim)

    def has_grown() -> bool:
        mine = claims.get(claim, NAMESPACE)
        waits = [c.type for c in mine.status.conditions] if mine else []
        return _is_expanded(mine) or "FileSystemResizePending" in waits

    await env.until(PersistentVolumeClaim, has_grown, "the claim has grown, or waits for its node")


async def wait_until_expanded(env: ClusterEnv, claim: str) -> None:
    claims = env.client.cache(PersistentVolumeClaim)
    await env.until(
        PersistentVolumeClaim,
        lambda: _is_expanded(claims.get(claim, NAMESPACE)),
        "the claim has its new size",
    )


def _is_expanded(claim: PersistentVolumeClaim | None) -> bool:
    return claim is not None and quantity.value(claim.status.capacity.get("storage", "0")) >= 2 << 30


async def skip_if_kernel_cannot_grow(env: ClusterEnv, work: Awaitable[None]) -> None:
    """Run the work of a case; skip the case if it fails where this machine does not expand a mounted ext4.

    It may succeed nevertheless: some drivers expand the file system when they stage the volume again.
    """
    first = env.tap.mark()
    async with background(work, _wait_until_late(env)) as (running, late):
        await asyncio.wait({running, late}, return_when=asyncio.FIRST_COMPLETED)
        is_refused = any(NOT_PERMITTED in call.message for call in env.tap.since(first))
        if not (is_refused and not may_grow_mounted_ext()):
            await running
        elif not running.done() or isinstance(running.exception(), CaseFailure):
            raise NotSupported(CANNOT_GROW)
        await running


async def _wait_until_late(env: ClusterEnv) -> None:
    if math.isinf(env.case_timeout):
        await asyncio.Event().wait()
    await asyncio.sleep(env.case_timeout * PATIENCE)


@asynccontextmanager
async def expect_nothing_left(env: ClusterEnv) -> AsyncIterator[None]:
    """Check that the block creates nothing twice, attaches nothing twice, and leaves nothing."""
    before, first = await env.take_inventory(), env.tap.mark()
    yield
    await env.wait_for_unmounts(before.mounts)
    after = await env.take_inventory()
    for wrong in (*call_audit.audit_calls(env.tap.since(first)), *after.leftovers_since(before)):
        require(False, wrong.what, section=wrong.section)
