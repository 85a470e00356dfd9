"""A VolumeSnapshot: the snapshot controller's plan for it, and what its content says of the driver."""

from __future__ import annotations

from msgspec import structs

from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotContent
from volplane.controllers.snapshot.controller import SnapshotView, VolumeSnapshots
from volplane.controllers.snapshot.steps import ReportError
from volplane.explain import finalizers, sidecars
from volplane.explain.cluster_state import ClusterState, parse_time
from volplane.explain.result import Explanation, done_step, waiting_step
from volplane.rules import snapshots
from volplane.rules.waits import Wait

CONTROLLER = "snapshot controller"


async def story(scene: ClusterState, snapshot: VolumeSnapshot) -> Explanation:
    controller = await scene.load_controller(VolumeSnapshots)
    inputs = controller.view_inputs(snapshot)
    view = SnapshotView(snapshot, (), inputs)
    since = parse_time(snapshot.metadata.deletion_timestamp or snapshot.metadata.creation_timestamp)
    for step in controller.plan(view):
        match step:
            case ReportError(_, message):
                return Explanation((waiting_step("be taken", CONTROLLER, message, since=since),))
            case Wait(_, why):
                return Explanation((waiting_step("be deleted", CONTROLLER, why, since=since),))
    if snapshot.is_deleting:
        return Explanation(tuple(finalizers.finalizer_steps(snapshot, since)))
    if snapshots.is_ready(snapshot):
        return Explanation((done_step("taken, and ready to use", CONTROLLER),))
    return await _explain_content(scene, snapshot, inputs.content)


async def _explain_content(
    scene: ClusterState, snapshot: VolumeSnapshot, content: VolumeSnapshotContent | None
) -> Explanation:
    since = parse_time(snapshot.metadata.creation_timestamp)
    if content is None:
        why = "the controller has it to do, and has not made the VolumeSnapshotContent yet"
        hint = "look again in a second; if it stays so, see whether the snapshot-controller runs"
        return Explanation((waiting_step("be taken", CONTROLLER, why, since=since),), (hint,))
    driver = content.spec.driver
    error = content.status.error.message if content.status and content.status.error else ""
    beside = await sidecars.find_sidecar(scene, "csi-snapshotter", driver)
    taken = content.status is not None and content.status.snapshot_handle
    why = error or f"{driver} has {'taken it, and it is not ready to use' if taken else 'not taken it'} yet"
    step = waiting_step(
        "be taken (CreateSnapshot)",
        f"csi-snapshotter of {driver}",
        why,
        since=since,
        details=beside.facts,
    )
    for note in scene.roles.of("csi-snapshotter", content.name):
        step = structs.replace(step, why=note.why or why, since=note.since, until=note.next_try)
    made = done_step(f"VolumeSnapshotContent {content.name}", CONTROLLER)
    return Explanation((made, step), beside.advice)


def rest(snapshot: VolumeSnapshot) -> str:
    size = snapshot.status.restore_size if snapshot.status is not None else None
    return f"ready to use{f', {size}' if size else ''}"
