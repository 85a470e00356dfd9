"""A VolumeSnapshot: the snapshot controller's plan for it, then the snapshotter's for its content."""

from __future__ import annotations

from msgspec import structs

from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent
from volplane.controllers.snapshot.controller import SnapshotView, VolumeSnapshots
from volplane.controllers.snapshot.steps import ReportError
from volplane.explain import finalizers, sidecars
from volplane.explain.claims import check_again
from volplane.explain.cluster_state import ClusterState, parse_time
from volplane.explain.result import Explanation, done_step, waiting_step
from volplane.rules import snapshots
from volplane.rules.waits import Wait
from volplane.sidecars.snapshotter import plan as snapshotter

CONTROLLER = "snapshot controller"
SNAPSHOTTER = "csi-snapshotter"


async def explain(state: ClusterState, snapshot: VolumeSnapshot) -> Explanation:
    controller = await state.load_controller(VolumeSnapshots)
    inputs = controller.view_inputs(snapshot)
    view = SnapshotView(snapshot, (), inputs)
    since = parse_time(snapshot.metadata.deletion_timestamp or snapshot.metadata.creation_timestamp)
    what = "be deleted" if snapshot.is_deleting else "be taken"
    for step in controller.plan(view):
        match step:
            case ReportError(_, message):
                return Explanation((waiting_step(what, CONTROLLER, message, since=since),))
            case Wait():
                return Explanation((waiting_step(what, CONTROLLER, step, since=since),))
    if snapshot.is_deleting:
        return Explanation(tuple(finalizers.finalizer_steps(snapshot, since)))
    if snapshots.is_ready(snapshot):
        return Explanation((done_step("taken and ready to use", CONTROLLER),))
    return await _explain_content(state, snapshot, inputs.content)


def summarize(snapshot: VolumeSnapshot) -> str:
    size = snapshot.status.restore_size if snapshot.status is not None else None
    return f"ready to use{f', {size}' if size else ''}"


async def _explain_content(
    state: ClusterState, snapshot: VolumeSnapshot, content: VolumeSnapshotContent | None
) -> Explanation:
    since = parse_time(snapshot.metadata.creation_timestamp)
    if content is None:
        why = "the controller has not created the VolumeSnapshotContent yet"
        step = waiting_step("be taken", CONTROLLER, why, since=since)
        return Explanation((step,), (check_again("the snapshot-controller"),))
    driver = content.spec.driver
    sidecar = await sidecars.find_sidecar(state, SNAPSHOTTER, driver)
    step = waiting_step(
        "be taken (CreateSnapshot)",
        f"{SNAPSHOTTER} of {driver}",
        await _find_wait(state, content) or _describe_driver(content),
        since=since,
        details=sidecar.facts,
    )
    for report in state.roles.find(SNAPSHOTTER, content.name):
        step = structs.replace(
            step, why=report.why or step.why, since=report.since, until=report.next_try, ends="retried"
        )
    created = done_step(f"VolumeSnapshotContent {content.name}", CONTROLLER)
    return Explanation((created, step), sidecar.advice)


async def _find_wait(state: ClusterState, content: VolumeSnapshotContent) -> Wait | None:
    """What the snapshotter's own plan waits for, before it can call the driver."""
    classes = await state.cache(VolumeSnapshotClass)
    found = classes.get(content.spec.volume_snapshot_class_name or "")
    node = content.metadata.labels.get(snapshots.MANAGED_BY)
    info = snapshotter.SnapshotterDriverInfo(content.spec.driver, node=node)
    steps = snapshotter.plan(content, found, info)
    return next((step for step in steps if isinstance(step, Wait)), None)


def _describe_driver(content: VolumeSnapshotContent) -> str:
    status, driver = content.status, content.spec.driver
    if status is not None and status.error is not None and status.error.message:
        return status.error.message
    if status is not None and status.snapshot_handle:
        return f"{driver} has taken the snapshot; it is not ready to use yet"
    return f"{driver} has not taken the snapshot yet"
