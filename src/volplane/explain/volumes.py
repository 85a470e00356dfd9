"""A volume: free, bound, released and kept, being deleted, or held by somebody although it is to go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

from msgspec import structs

from volplane.api.core import PersistentVolume
from volplane.api.storage import VolumeAttachment
from volplane.controllers.binder.controller import Binder
from volplane.controllers.binder.steps import VerifyClaimDeleted
from volplane.controllers.protection import plan as protection
from volplane.explain import attachments, finalizers, sidecars
from volplane.explain.claims import BINDER
from volplane.explain.cluster_state import ClusterState, parse_time
from volplane.explain.result import Explanation, ExplanationStep, done_step, waiting_step
from volplane.rules.binding import EXTERNAL_FINALIZER, VOLUME_PROTECTION, claim_key
from volplane.rules.steps import RecordEvent
from volplane.rules.waits import Wait

DELETING = "waiting for {} to delete it"


async def story(scene: ClusterState, volume: PersistentVolume) -> Explanation:
    told = await explain_deletion(scene, volume) if volume.is_deleting else Explanation()
    if told.first_wait is not None:
        return told
    return told + await _explain_binding(scene, volume)


def rest(volume: PersistentVolume) -> str:
    claim = claim_key(volume)
    phase = volume.status.phase or "Pending"
    return f"{phase}: {'bound to ' + claim if phase == 'Bound' else 'any claim it fits may have it'}"


async def _explain_binding(scene: ClusterState, volume: PersistentVolume) -> Explanation:
    binder = await scene.load_controller(Binder)
    view = binder.view_volume(volume)
    steps = list(binder.plan(view))
    if steps and isinstance(
        steps[0], VerifyClaimDeleted
    ):  # the caches were read from the server a moment ago
        steps = list(binder.plan(structs.replace(view, proven=True)))
    why = next((step.why for step in steps if isinstance(step, Wait)), "")
    since = parse_time(volume.status.last_phase_transition_time)
    if why:
        return await _explain_reclaim(scene, volume, why, since)
    if any(not isinstance(step, RecordEvent) for step in steps):
        told = "the binder has it to do, and has not done it yet"
        step = waiting_step("be brought up to date", BINDER, told, since=since)
        return Explanation(
            (step,), ("look again in a second; if it stays so, see whether kube-controller-manager runs",)
        )
    return Explanation((done_step(rest(volume), BINDER, since=since),))


async def _explain_reclaim(
    scene: ClusterState, volume: PersistentVolume, why: str, since: datetime | None
) -> Explanation:
    driver = attachments.driver_of(volume)
    claim = claim_key(volume)
    if why == DELETING.format(driver) or volume.spec.persistent_volume_reclaim_policy == "Delete":
        return await _explain_disk_deletion(scene, volume, why, since)
    if volume.status.phase == "Released":
        return Explanation(
            (waiting_step("be reclaimed", "you", f"{why}; its claim {claim} is gone", since=since),),
            (
                "its data is still there; to keep it for a new claim: "
                f'kubectl patch pv {volume.name} --type=merge -p \'{{"spec":{{"claimRef":null}}}}\'',
                f"to give it up: delete the disk in its storage, then kubectl delete pv {volume.name}",
            ),
        )
    return Explanation((waiting_step("be bound", BINDER, why, since=since),))


async def _explain_disk_deletion(
    scene: ClusterState, volume: PersistentVolume, why: str, since: datetime | None
) -> Explanation:
    driver = attachments.driver_of(volume)
    heard = await scene.find_events(volume, "VolumeFailedDelete")
    details = []
    if heard:
        why = heard[0].message
        details.append(scene.describe_event(heard[0]))
    beside = (
        await sidecars.find_sidecar(scene, "csi-provisioner", driver) if driver else sidecars.SidecarStatus()
    )
    details += beside.facts
    step = waiting_step(
        "delete the disk (DeleteVolume)", f"csi-provisioner of {driver}", why, since=since, details=details
    )
    for note in scene.roles.of("csi-provisioner-volumes", volume.name):
        step = structs.replace(
            step, why=note.why or why, since=note.since, until=note.next_try, ends="tried again"
        )
    held = [s async for s in _attachment_steps(scene, volume)]
    return Explanation((*held, step), beside.advice)


async def _attachment_steps(scene: ClusterState, volume: PersistentVolume) -> AsyncIterator[ExplanationStep]:
    """A disk that is attached somewhere is not deleted."""
    for attachment in (await scene.cache(VolumeAttachment)).all():
        if attachment.spec.source.persistent_volume_name == volume.name:
            why = f"VolumeAttachment {attachment.name} has it on {attachment.spec.node_name}"
            yield waiting_step("be detached", attachments.CONTROLLER, why)


async def explain_deletion(scene: ClusterState, volume: PersistentVolume) -> Explanation:
    since = parse_time(volume.metadata.deletion_timestamp)
    steps: list[ExplanationStep] = []
    advice: list[str] = []
    for step in protection.plan_volume(volume):
        if isinstance(step, Wait):
            steps.append(waiting_step("be deleted", "volume protection", step.why, since=since))
            namespace, _, name = claim_key(volume).partition("/")
            advice.append(f"kubectl delete pvc -n {namespace} {name}, if its data may go")
    held = [s async for s in _attachment_steps(scene, volume)]
    if any(f.startswith("external-attacher/") for f in volume.metadata.finalizers) and held:
        steps += held
    told = (VOLUME_PROTECTION, EXTERNAL_FINALIZER) if steps else ()
    others = [
        s
        for s in finalizers.finalizer_steps(volume, since, told)
        if not (held and "external-attacher/" in s.why)
    ]
    return Explanation((*steps, *others), tuple(advice))
