"""A VolumeSnapshot: the snapshot controller's plan for it, and what its content says of the driver."""

from __future__ import annotations

from msgspec import structs

from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotContent
from volplane.controllers.snapshot.controller import Snapshots, SnapshotView
from volplane.controllers.snapshot.steps import ReportError
from volplane.explain import finalizers, sidecars
from volplane.explain.answer import Story, done, waits
from volplane.explain.scene import Scene, moment
from volplane.rules import snapshots
from volplane.rules.steps import Wait

CONTROLLER = "snapshot controller"


async def story(scene: Scene, snapshot: VolumeSnapshot) -> Story:
    controller = await scene.seen_by(Snapshots)
    inputs = controller.view_inputs(snapshot)
    view = SnapshotView(snapshot, (), inputs)
    since = moment(snapshot.metadata.deletion_timestamp or snapshot.metadata.creation_timestamp)
    for step in controller.plan(view):
        match step:
            case ReportError(_, message):
                return Story((waits("be taken", CONTROLLER, message, since=since),))
            case Wait(_, why):
                return Story((waits("be deleted", CONTROLLER, why, since=since),))
    if snapshot.is_deleting:
        return Story(tuple(finalizers.steps(snapshot, since)))
    if snapshots.is_ready(snapshot):
        return Story((done("taken, and ready to use", CONTROLLER),))
    return await _content(scene, snapshot, inputs.content)


async def _content(scene: Scene, snapshot: VolumeSnapshot, content: VolumeSnapshotContent | None) -> Story:
    since = moment(snapshot.metadata.creation_timestamp)
    if content is None:
        why = "the controller has it to do, and has not made the VolumeSnapshotContent yet"
        hint = "look again in a second; if it stays so, see whether the snapshot-controller runs"
        return Story((waits("be taken", CONTROLLER, why, since=since),), (hint,))
    driver = content.spec.driver
    error = content.status.error.message if content.status and content.status.error else ""
    beside = await sidecars.look(scene, "csi-snapshotter", driver)
    taken = content.status is not None and content.status.snapshot_handle
    why = error or f"{driver} has {'taken it, and it is not ready to use' if taken else 'not taken it'} yet"
    step = waits(
        "be taken (CreateSnapshot)",
        f"csi-snapshotter of {driver}",
        why,
        since=since,
        details=beside.facts,
    )
    for note in scene.roles.of("csi-snapshotter", content.name):
        step = structs.replace(step, why=note.why or why, since=note.since, until=note.next_try)
    made = done(f"VolumeSnapshotContent {content.name}", CONTROLLER)
    return Story((made, step), beside.advice)


def rest(snapshot: VolumeSnapshot) -> str:
    size = snapshot.status.restore_size if snapshot.status is not None else None
    return f"ready to use{f', {size}' if size else ''}"
