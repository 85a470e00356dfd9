"""Snapshots of claims: contract provisioning E.1 and E.2, and E's cases to test."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.contract.provisioning.operations_env import GI, OperationsEnv, real, virtual
from tests.contract.provisioning.snapping import (
    Settings,
    content_of,
    drop,
    error_of,
    get,
    gone,
    ready,
    roles,
    snapshot_class,
    snapshotting,
    take,
    until_snapshot,
)
from tests.support import scripted
from tests.support.scripted import Delay, Fail, Hold
from tests.support.timing import GRAIN
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Secret
from volplane.api.errors import Invalid
from volplane.api.meta import ObjectMeta
from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotContent
from volplane.controllers.snapshot import role
from volplane.controllers.snapshot.controller import VolumeSnapshots
from volplane.csi.outcome import Code
from volplane.loops.controller import Unsupported
from volplane.rules import snapshots
from volplane.sidecars.snapshotter import service as snapshotter

both = pytest.mark.both


async def test_a_snapshot_of_a_claim_is_taken_and_bound() -> None:
    async with snapshotting(sidecar={"extra_create_metadata": True}) as env:
        claim = await env.bound()
        made = await take(env)
        snapshot = await ready(env)
        content = await content_of(env, snapshot)
        assert content.name == f"snapcontent-{made.uid}"
        ref = content.spec.volume_snapshot_ref
        assert (ref.namespace, ref.name, ref.uid, ref.kind) == ("default", "snap", made.uid, "VolumeSnapshot")
        assert content.spec.driver == scripted.NAME
        assert content.spec.deletion_policy == "Delete"
        assert content.spec.volume_snapshot_class_name == "snaps"
        assert content.spec.source_volume_mode == "Filesystem"
        assert content.spec.source.volume_handle == f"vol-{claim.spec.volume_name}"
        assert content.metadata.finalizers == (snapshots.CONTENT_BOUND,)
        assert snapshots.BEING_CREATED not in content.metadata.annotations
        assert content.status is not None
        assert content.status.restore_size == GI
        assert snapshot.status is not None
        assert snapshot.status.restore_size == "1Gi"
        assert snapshot.status.creation_time is not None
        assert snapshot.status.error is None
        (request,) = env.driver.requests_of("CreateSnapshot")
        assert request.name == f"snapshot-{made.uid}"
        assert request.source_volume_id == f"vol-{claim.spec.volume_name}"
        assert await env.said("CreatingSnapshot", "snap") == (
            "Waiting for a snapshot default/snap to be created by the CSI driver."
        )
        await env.said("SnapshotCreated", "snap")
        await env.said("SnapshotReady", "snap")
        held = (snapshots.AS_SOURCE, snapshots.BOUND)
        await until_snapshot(env, lambda s: s.metadata.finalizers == held)
        await env.until_claim(lambda c: snapshots.CLAIM_AS_SOURCE not in c.metadata.finalizers)
        await drop(env)
        await gone(env)
        await env.gone(VolumeSnapshotContent, content.name)
        assert env.driver.snapshots == {}


@pytest.mark.virtual
async def test_names_and_secrets_go_to_the_driver_but_not_our_own_parameters() -> None:
    async with virtual("snapshots") as env:
        await snapshot_class(
            env,
            speed="slow",
            **dict[str, Any](
                {
                    "csi.storage.k8s.io/snapshotter-secret-name": "${volumesnapshot.name}-key",
                    "csi.storage.k8s.io/snapshotter-secret-namespace": "${volumesnapshot.namespace}",
                }
            ),
        )
        made = Secret(metadata=ObjectMeta(name="snap-key", namespace="default"), data={"user": b"me"})
        await env.client.create(made)
        async with roles(env, sidecar={"extra_create_metadata": True}):
            await env.bound()
            await take(env)
            content = await content_of(env, await ready(env))
            notes = content.metadata.annotations
            assert notes[snapshots.SECRET_NAME] == "snap-key"
            assert notes[snapshots.SECRET_NAMESPACE] == "default"
            (request,) = env.driver.requests_of("CreateSnapshot")
            assert dict(request.secrets) == {"user": "me"}
            assert dict(request.parameters) == {
                "speed": "slow",
                "csi.storage.k8s.io/volumesnapshot/name": "snap",
                "csi.storage.k8s.io/volumesnapshot/namespace": "default",
                "csi.storage.k8s.io/volumesnapshotcontent/name": content.name,
            }
            # Unlike a volume's, a snapshot's deletion waits for its secret.
            await env.client.delete(Secret, "snap-key", "default")
            await drop(env)
            reported = await env.said("SnapshotDeleteError", content.name)
            assert reported == "Failed to get snapshot credentials"
            assert env.driver.requests_of("DeleteSnapshot") == []
            await env.client.create(made)
            await gone(env)
            assert len(env.driver.requests_of("DeleteSnapshot")) == 1


@pytest.mark.virtual
async def test_an_unknown_parameter_of_ours_is_refused() -> None:
    async with virtual("snapshots") as env, roles(env):
        await snapshot_class(env, **dict[str, Any]({"csi.storage.k8s.io/mistake": "x"}))
        await env.bound()
        made = await take(env)
        reported = await env.said("SnapshotCreationFailed", snapshots.content_name(made))
        assert "csi.storage.k8s.io/mistake" in reported
        assert env.driver.requests_of("CreateSnapshot") == []


@pytest.mark.virtual
async def test_without_a_class_the_default_of_the_volumes_driver_is_taken() -> None:
    async with snapshotting() as env:
        await env.bound()
        await take(env, cls=None)
        reported = "Failed to set default snapshot class with error cannot find default snapshot class"
        assert await env.said("SetDefaultSnapshotClassFailed", "snap") == reported
        assert error_of(await get(env)) == reported
        await snapshot_class(env, "usual", default=True)
        snapshot = await ready(env)
        assert snapshot.spec.volume_snapshot_class_name == "usual"
        await snapshot_class(env, "usual-too", default=True)
        await take(env, "other", cls=None)
        reported = await env.said("SetDefaultSnapshotClassFailed", "other")
        assert reported.endswith("2 default snapshot classes were found")


@pytest.mark.virtual
async def test_a_class_that_is_missing_is_waited_for() -> None:
    async with snapshotting() as env:
        await env.bound()
        await take(env, cls="later")
        reported = await env.said("GetSnapshotClassFailed", "snap")
        why = 'volumesnapshotclass.snapshot.storage.k8s.io "later" not found'
        assert reported == f"Failed to get snapshot class with error {why}"
        await snapshot_class(env, "later")
        snapshot = await ready(env)
        assert error_of(snapshot) == ""


@pytest.mark.virtual
async def test_a_claim_that_is_not_bound_yet_is_waited_for() -> None:
    async with snapshotting() as env:
        await take(env)
        reported = await env.said("SnapshotContentCreationFailed", "snap")
        assert 'persistentvolumeclaim "data" not found' in reported
        await env.bound()
        await ready(env)


@both
async def test_a_snapshot_becomes_ready_after_three_looks_and_says_so_once() -> None:
    async with snapshotting() as env:
        env.driver.ready_after = 3
        env.driver.script("CreateSnapshot", Delay(0), hold := Hold())
        await env.bound()
        await take(env)
        snapshot = await until_snapshot(env, lambda s: s.status and s.status.creation_time)
        assert not snapshots.is_ready(snapshot)
        hold.release()
        snapshot = await ready(env)
        assert snapshot.status is not None
        assert snapshot.status.error is None
        await env.said("SnapshotReady", "snap")
        await env.rest(1200)
        assert len(env.driver.requests_of("CreateSnapshot")) == 4
        assert len({r.name for r in env.driver.requests_of("CreateSnapshot")}) == 1
        assert await env.count("SnapshotReady", "snap") == 1
        assert await env.count("SnapshotCreated", "snap") == 1


@pytest.mark.virtual
async def test_an_error_is_told_on_content_and_snapshot_and_cleared_when_it_is_ready() -> None:
    async with snapshotting() as env:
        env.driver.script("CreateSnapshot", Fail(Code.INTERNAL, "no space"), Hold())
        claim = await env.bound()
        made = await take(env)
        error = "rpc error: code = Internal desc = no space"
        reported = (
            f"Failed to create snapshot: failed to take snapshot of the volume vol-{claim.spec.volume_name}: "
            f'"{error}"'
        )
        assert await env.said("SnapshotCreationFailed", snapshots.content_name(made)) == reported
        snapshot = await until_snapshot(env, lambda s: error_of(s) == reported)
        content = await content_of(env, snapshot)
        assert snapshots.BEING_CREATED not in content.metadata.annotations  # a final answer
        await asyncio.sleep(5)
        assert snapshots.BEING_CREATED in (await content_of(env, snapshot)).metadata.annotations
    # The held call is gone with its role.


@pytest.mark.parametrize("point", ["rpc:CreateSnapshot:before", "rpc:CreateSnapshot:after"])
async def test_a_crash_while_a_snapshot_is_taken_leaks_nothing(point: str) -> None:
    async with real("snapshots") as env, env.controllers(VolumeSnapshots):
        await snapshot_class(env)
        await env.bound()
        async with env.process("snapshotter", failpoint=point) as process:
            made = await take(env)
            await env.killed(process)
        content = await env.client.get(VolumeSnapshotContent, snapshots.content_name(made))
        assert content.metadata.annotations[snapshots.BEING_CREATED] == "yes"
        await drop(env)
        async with env.process("snapshotter"):
            await gone(env)
            await env.gone(VolumeSnapshotContent, content.name)
        assert env.driver.snapshots == {}


@pytest.mark.parametrize("killed_after", ["content", "status"])
async def test_a_crash_of_the_snapshot_controller_is_made_up_for(killed_after: str) -> None:
    async with real("snapshots") as env:
        await snapshot_class(env)
        await env.bound()
        async with env.process("snapshot-controller") as process:
            made = await take(env)
            name = snapshots.content_name(made)

            async def far_enough() -> bool:
                content = await env.client.find(VolumeSnapshotContent, name)
                bound = snapshots.bound_name(await get(env))
                return content is not None if killed_after == "content" else bool(bound)

            await env.until(far_enough)
            process.kill()
            await env.killed(process)
        async with (
            env.process("snapshot-controller"),
            env.sidecar(snapshotter.run, snapshotter.SnapshotterOptions()),
        ):
            await ready(env)
            await drop(env)
            await gone(env)
        assert env.driver.snapshots == {}


@pytest.mark.virtual
async def test_every_node_handles_its_own_where_that_is_asked_for() -> None:
    async with virtual("snapshots") as env:
        await snapshot_class(env)
        labels = {"kubernetes.io/hostname": "worker-1"}
        await env.client.create(Node(metadata=ObjectMeta(name="worker-1", labels=labels)))
        claim = await env.bound()
        await _tie(env, claim, "worker-1")
        distributed = {"enable_distributed_snapshotting": True}
        async with env.controllers(_with(distributed)):
            await take(env)
            snapshot = await until_snapshot(env, snapshots.bound_name)
            content = await content_of(env, snapshot)
            assert content.metadata.labels[snapshots.MANAGED_BY] == "worker-1"
            mine = snapshotter.SnapshotterOptions(node_deployment=True)

            async def on(node: str, client: Any, settings: Any, **more: Any) -> None:
                await snapshotter.run(client, settings, node=node, **more)

            async with env.sidecar(lambda *a, **k: on("worker-2", *a, **k), mine):
                await asyncio.sleep(60)
                assert env.driver.requests_of("CreateSnapshot") == []
            async with env.sidecar(lambda *a, **k: on("worker-1", *a, **k), mine):
                await ready(env)


async def _tie(env: OperationsEnv, claim: PersistentVolumeClaim, host: str) -> None:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}
    affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
    await env.client.patch(PersistentVolume, claim.spec.volume_name, merge={"spec": affinity})


def _with(settings: Settings) -> Any:
    class Chosen(VolumeSnapshots):
        def __init__(self, client: Any) -> None:
            super().__init__(client, role.SnapshotControllerOptions(**settings))

    return Chosen


@pytest.mark.virtual
async def test_the_source_of_a_snapshot_is_one_and_stays() -> None:
    async with snapshotting() as env:
        await env.bound()
        await take(env)
        other = {"spec": {"source": {"persistentVolumeClaimName": "other"}}}
        with pytest.raises(Invalid, match="persistentVolumeClaimName is immutable"):
            await env.client.patch(VolumeSnapshot, "snap", "default", merge=other)


async def test_the_pause_of_a_failed_snapshot_is_as_its_flag_says() -> None:
    async with real("snapshots") as env:
        await snapshot_class(env)
        env.driver.script("CreateSnapshot", *[Fail(Code.INTERNAL)] * 3, Delay(0.01))
        await env.bound()
        env.driver.clock = time.monotonic
        quick = "--retry-interval-start=50ms"
        async with env.process("snapshot-controller", quick), env.process("snapshotter", quick):
            await take(env)
            await ready(env)
        assert len(env.driver.requests_of("CreateSnapshot")) == 4
        for pause, least in zip(env.driver.pauses("CreateSnapshot"), (0.05, 0.1, 0.2), strict=True):
            assert pause > least - GRAIN


@pytest.mark.virtual
async def test_a_driver_that_takes_no_snapshots_gets_no_snapshotter() -> None:
    async with virtual() as env:
        with pytest.raises(Unsupported, match="CSI driver does not support ControllerCreateSnapshot"):
            async with env.sidecar(snapshotter.run, snapshotter.SnapshotterOptions()):
                await asyncio.sleep(1)
