"""A volume: available, bound, released and retained, or being deleted and still held."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

from msgspec import structs

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.finalizers import EXTERNAL_PROVISIONER_FINALIZER, PV_PROTECTION_FINALIZER
from volplane.api.storage import VolumeAttachment
from volplane.controllers.binder.controller import Binder
from volplane.controllers.binder.steps import VerifyClaimDeleted
from volplane.controllers.protection import plan as protection
from volplane.explain import attachments, claims, finalizers, sidecars
from volplane.explain.claims import BINDER, PROVISIONER, check_again
from volplane.explain.cluster_state import ClusterState, parse_time
from volplane.explain.result import Explanation, ExplanationStep, done_step, later_step, waiting_step
from volplane.rules.binding import claim_key, is_pair
from volplane.rules.steps import RecordEvent
from volplane.rules.waits import Wait, WaitReason


async def explain(state: ClusterState, volume: PersistentVolume) -> Explanation:
    explanation = await explain_deletion(state, volume) if volume.is_deleting else Explanation()
    if explanation.first_wait is not None:
        return explanation
    leaving = await _explain_claim_deletion(state, volume)
    if leaving.first_wait is not None:
        return explanation + leaving
    return explanation + await _explain_binding(state, volume)


async def _explain_claim_deletion(state: ClusterState, volume: PersistentVolume) -> Explanation:
    """A volume whose claim is being deleted is released only after that."""
    claim = (await state.cache(PersistentVolumeClaim)).at(claim_key(volume))
    if claim is None or not claim.is_deleting or not is_pair(claim, volume):
        return Explanation()
    found = await claims.explain_deletion(state, claim)
    steps = tuple(structs.replace(step, what=f"claim {claim.key}: {step.what}") for step in found.steps)
    policy = volume.spec.persistent_volume_reclaim_policy
    release = later_step(f"be released, and then: {policy}", BINDER)
    return Explanation((*steps, release), found.advice)


def summarize(volume: PersistentVolume) -> str:
    claim = claim_key(volume)
    phase = volume.status.phase or "Pending"
    return f"{phase}: {f'bound to {claim}' if phase == 'Bound' else 'any matching claim may bind to it'}"


async def _explain_binding(state: ClusterState, volume: PersistentVolume) -> Explanation:
    binder = await state.load_controller(Binder)
    view = binder.view_volume(volume)
    steps = list(binder.plan(view))
    if steps and isinstance(steps[0], VerifyClaimDeleted):  # the caches were read a moment ago
        steps = list(binder.plan(structs.replace(view, proven=True)))
    wait = next((step for step in steps if isinstance(step, Wait)), None)
    since = parse_time(volume.status.last_phase_transition_time)
    if wait is not None:
        return await _explain_reclaim(state, volume, wait, since)
    if any(not isinstance(step, RecordEvent) for step in steps):
        why = "the binder has not updated the volume yet"
        step = waiting_step("be updated", BINDER, why, since=since)
        return Explanation((step,), (check_again("kube-controller-manager"),))
    return Explanation((done_step(summarize(volume), BINDER, since=since),))


async def _explain_reclaim(
    state: ClusterState, volume: PersistentVolume, wait: Wait, since: datetime | None
) -> Explanation:
    match wait.reason:
        case WaitReason.DISK_DELETION:
            return await _explain_disk_deletion(state, volume, wait, since)
        case WaitReason.VOLUME_RETAINED:
            step = waiting_step("be reclaimed", "you", wait, since=since)
            why = f"{step.why}; its claim {claim_key(volume)} is deleted"
            patch = '{"spec":{"claimRef":null}}'
            return Explanation(
                (structs.replace(step, why=why),),
                (
                    "to keep its data for a new claim: "
                    f"kubectl patch pv {volume.name} --type=merge -p '{patch}'",
                    f"to delete its data: delete the disk, then kubectl delete pv {volume.name}",
                ),
            )
    return Explanation((waiting_step("be reclaimed or bound", BINDER, wait, since=since),))


async def _explain_disk_deletion(
    state: ClusterState, volume: PersistentVolume, wait: Wait, since: datetime | None
) -> Explanation:
    driver = attachments.driver_of(volume)
    events = await state.find_events(volume, "VolumeFailedDelete")
    sidecar = await sidecars.find_sidecar(state, PROVISIONER, driver) if driver else sidecars.SidecarStatus()
    details = [*(state.describe_event(event) for event in events[:1]), *sidecar.facts]
    what, who = "delete the disk (DeleteVolume)", f"{PROVISIONER} of {driver}"
    step = waiting_step(what, who, wait, since=since, details=details)
    if events:
        step = structs.replace(step, why=events[0].message)
    for report in state.roles.find("csi-provisioner-volumes", volume.name):
        step = structs.replace(
            step, why=report.why or step.why, since=report.since, until=report.next_try, ends="retried"
        )
    attached = [step async for step in _attachment_steps(state, volume)]
    return Explanation((*attached, step), sidecar.advice)


async def _attachment_steps(state: ClusterState, volume: PersistentVolume) -> AsyncIterator[ExplanationStep]:
    """A disk that is attached is not deleted."""
    for attachment in (await state.cache(VolumeAttachment)).all():
        if attachment.spec.source.persistent_volume_name == volume.name:
            why = f"attached to {attachment.spec.node_name} by VolumeAttachment {attachment.name}"
            yield waiting_step("be detached", attachments.CONTROLLER, why)


async def explain_deletion(state: ClusterState, volume: PersistentVolume) -> Explanation:
    since = parse_time(volume.metadata.deletion_timestamp)
    steps: list[ExplanationStep] = []
    advice: list[str] = []
    for step in protection.plan_volume(volume):
        if isinstance(step, Wait):
            steps.append(waiting_step("be deleted", "volume protection", step, since=since))
            namespace, _, name = step.data.claim.partition("/")
            advice.append(f"kubectl delete pvc -n {namespace} {name}, if its data is not needed any more")
    attacher = [f for f in volume.metadata.finalizers if f.startswith(finalizers.ATTACHER_PREFIX)]
    attached = [step async for step in _attachment_steps(state, volume)] if attacher else []
    steps += attached
    handled: tuple[str, ...] = (PV_PROTECTION_FINALIZER, EXTERNAL_PROVISIONER_FINALIZER) if steps else ()
    if attached:
        handled += tuple(attacher)
    others = finalizers.finalizer_steps(volume, since, handled)
    return Explanation((*steps, *others), tuple(advice))
