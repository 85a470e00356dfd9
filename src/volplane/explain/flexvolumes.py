"""FlexVolumes: what their drivers are waited for, and whether one is missing in the controller.

Only the running controller knows which drivers it has found: its wait reports tell it.
"""

from __future__ import annotations

from msgspec import structs

from volplane.api.annotations import FLEX_VOLUME_ANNOTATION
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim
from volplane.api.storage import VolumeAttachment
from volplane.controllers.attachdetach.controller import AttachDetach
from volplane.controllers.expand import plan as expansion
from volplane.controllers.expand.controller import Expansion
from volplane.controllers.flexvolume.controller import FlexAttachments
from volplane.explain.cluster_state import ClusterState, format_duration
from volplane.explain.result import Explanation, ExplanationStep, later_step, waiting_step
from volplane.loops.wait_reports import WaitReport
from volplane.rules.waits import Wait, WaitReason
from volplane.volumes.flex.attachment import split_unique_name

CONTROLLER = "attach/detach controller"


def find_missing_driver(state: ClusterState, volume: str) -> WaitReport | None:
    """What the running controller reports if it lacks the driver of a volume."""
    reports = state.roles.find(AttachDetach.name, volume)
    return next((report for report in reports if report.reason == WaitReason.FLEX_DRIVER_MISSING), None)


def explain_missing_driver(what: str, report: WaitReport) -> Explanation:
    step = waiting_step(what, CONTROLLER, report.why, since=report.since)
    step = structs.replace(step, reason=WaitReason.FLEX_DRIVER_MISSING)
    advice = (
        f"install FlexVolume driver {report.data.driver} where kube-controller-manager runs "
        "(--flex-volume-plugin-dir); it is used at once"
    )
    return Explanation((step, later_step("mount", "kubelet")), (advice,))


def add_controller_facts(
    state: ClusterState, step: ExplanationStep, attachment: VolumeAttachment
) -> Explanation:
    """The step with what the controller that calls the driver waits for, and its next attempt."""
    reports = state.roles.find(FlexAttachments.name, attachment.name)
    waits = tuple(f"{FlexAttachments.name}: {report.why}" for report in reports if report.why)
    retries = tuple(f"retried in {format_duration(r.next_try - state.now)}" for r in reports if r.next_try)
    driver = split_unique_name(attachment.metadata.annotations.get(FLEX_VOLUME_ANNOTATION, ""))[0]
    advice = f"check the log of kube-controller-manager for calls of FlexVolume driver {driver}"
    return Explanation((structs.replace(step, details=(*step.details, *waits, *retries)),), (advice,))


def needs_attach(state: ClusterState, controller: AttachDetach, volume: str, node: Node | None) -> bool:
    """Whether something shows that the driver attaches: its capabilities are known only where it runs."""
    name = node.name if node is not None else ""
    return (
        any(a.spec.node_name == name for a in controller.flex.attachments(volume))
        or (node is not None and volume in node.status.volumes_in_use)
        or find_missing_driver(state, volume) is not None
    )


async def explain_expansion(
    state: ClusterState, claim: PersistentVolumeClaim, volume: PersistentVolume, what: str
) -> Explanation | Wait:
    """A FlexVolume that its driver has to expand; a `Wait` if its node has to."""
    flex = volume.spec.flex_volume
    assert flex is not None
    steps = list(expansion.plan(expansion.ExpandView(claim, volume, flex.driver)))
    wait = next((step for step in steps if isinstance(step, Wait)), None)
    if wait is not None:
        return wait
    reports = state.roles.find(Expansion.name, claim.key)
    events = await state.find_events(claim, "VolumeResizeFailed")
    why = f"FlexVolume driver {flex.driver} has not expanded the volume"
    if reports and reports[0].why:
        why = f"{why}: {reports[0].why}"
    elif events:
        why = f"{why}: {events[0].message}"
    details = [state.describe_event(event) for event in events[:1]]
    step = waiting_step(what, f"FlexVolume driver {flex.driver}", why, details=details)
    for report in reports:
        step = structs.replace(step, since=report.since, until=report.next_try, ends="retried")
    return Explanation((step, later_step(f"{what}: file system", "kubelet")))
