"""What to do about a claim, and about a volume: every situation, with what it observes.

There are two plans, because claims and volumes are woken by different events. Each is complete for its side,
and both complete a half-bound pair in the same way. The numbers are those of the test table.

Whether a claim counts as bound is decided by the annotation `bind-completed`, not by the phase: a claim whose
volume was deleted stays a bound claim that is Lost. A claim's deletionTimestamp is ignored: a claim that is
deleted while it is Pending may still be bound, because its volume may already be in creation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct, structs

from volplane.api.annotations import (
    BIND_COMPLETED_ANNOTATION,
    BOUND_BY_CONTROLLER_ANNOTATION,
    MIGRATED_TO_ANNOTATION,
    PROVISIONED_BY_ANNOTATION,
    SELECTED_NODE_ANNOTATION,
    STORAGE_PROVISIONER_ANNOTATION,
)
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.finalizers import EXTERNAL_PROVISIONER_FINALIZER, PV_CONTROLLER_FINALIZER
from volplane.api.storage import StorageClass
from volplane.controllers.binder import recycling
from volplane.controllers.binder.steps import (
    ClaimStep,
    FixMetadata,
    SetClaimRef,
    SetClaimStatus,
    SetDefaultClass,
    SetProvisioner,
    SetVolumeName,
    SetVolumePhase,
    UnbindVolume,
    VerifyClaimDeleted,
    VolumeStep,
)
from volplane.rules import classes, in_tree, matching
from volplane.rules.binding import claim_class, claim_key, is_for, requested_provisioner
from volplane.rules.steps import CommonStep, Requeue, normal, warning
from volplane.rules.waits import Wait, WaitData, WaitReason

NO_VOLUME = "no persistent volumes available for this claim and no storage class is set"
NO_CONSUMER = "waiting for first consumer to be created before binding"
AWAITS_OUTSIDE = (
    "Waiting for a volume to be created either by the external provisioner '{}' or manually by the system "
    "administrator. If volume creation is delayed, please verify that the provisioner is running and "
    "correctly registered."
)
LOST_REFERENCE = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"
LOST_VOLUME = "Bound claim has lost its PersistentVolume. Data on the volume is lost!"
MISBOUND = "Two claims are bound to the same volume, this one is bound incorrectly"
UNKNOWN_POLICY = "Volume has unrecognized PersistentVolumeReclaimPolicy"
NO_DELETER = 'error getting deleter volume plugin for volume "{}": no deletable volume plugin matched'
NO_RECYCLER = "No recycler plugin found for the volume!"
FINISHED_PHASES = ("Released", "Failed")


class ClaimView(Struct, frozen=True):
    """A claim and the objects that its plan depends on."""

    claim: PersistentVolumeClaim
    volume: PersistentVolume | None = None  # the one that spec.volumeName names
    candidates: Sequence[PersistentVolume] = ()  # unclaimed, or reserved for this claim
    unclaimed: Sequence[PersistentVolume] = ()  # of every class, to report why none matches
    storage_class: StorageClass | None = None  # the one that the claim names
    default_class: str = ""
    pods: Sequence[str] = ()  # that use the claim and have no node yet
    dynamic: bool = True  # --enable-dynamic-provisioning


class VolumeView(Struct, frozen=True):
    volume: PersistentVolume
    claim: PersistentVolumeClaim | None = None  # the one that the claimRef names
    proven: bool = False  # `claim` was read from the server, not from a cache
    users: Sequence[str] = ()  # pods that use a claim of that name and may still write
    recycler: Pod | None = None  # the pod that deletes the volume's files


# --- claims


def plan_claim(view: ClaimView) -> Iterator[ClaimStep | CommonStep]:
    claim = view.claim
    fix = _migration(claim, requested_provisioner(claim.metadata.annotations))
    if fix is not None:
        # 0.1 claim has a migrated-to of another provisioner; its update wakes the key again
        yield fix
    elif BIND_COMPLETED_ANNOTATION in claim.metadata.annotations:
        yield from _plan_bound_claim(claim, view.volume)
    elif claim.spec.volume_name:
        yield from _plan_named_volume(claim, view.volume)
    else:
        yield from _plan_any_volume(view)


def _plan_any_volume(view: ClaimView) -> Iterator[ClaimStep | CommonStep]:
    claim = view.claim
    wanted = claim_class(claim)
    if view.storage_class is not None and not view.storage_class.volume_binding_mode:
        # 1.1 claim is Pending, its class has no volumeBindingMode
        yield Wait(WaitReason.BINDING_MODE_NOT_SET, WaitData(class_name=wanted or ""))
        return
    delayed = classes.is_delayed(view.storage_class)
    volume = matching.best(claim, view.candidates, delayed=delayed)
    if volume is not None:
        # 1.2 claim is Pending, volume is Available, or reserved for this claim
        yield from bind(claim, volume)
    elif wanted is None and view.default_class:
        # 1.3 claim is Pending, no volume fits, a default class was created after the claim
        yield SetDefaultClass(claim, view.default_class)
    elif delayed and SELECTED_NODE_ANNOTATION not in claim.metadata.annotations:
        # 1.4 claim is Pending, the scheduler has not chosen a node for a pod that uses it
        yield from _wait_for_consumer(claim, view.pods)
    elif wanted:
        # 1.5 claim is Pending, no volume fits, its class may provision one
        yield from _provision(view, wanted)
    else:
        # 1.6 claim is Pending, no volume fits, and none will be provisioned
        yield normal("FailedBinding", NO_VOLUME)
        yield from _plan_pending_claim(claim)
        yield from _wait_without_provisioner(view, Wait(WaitReason.NO_MATCHING_VOLUME))


def _wait_for_consumer(claim: PersistentVolumeClaim, pods: Sequence[str]) -> Iterator[ClaimStep | CommonStep]:
    if pods:
        many = "s" if len(pods) > 1 else ""
        yield normal("WaitForPodScheduled", f"waiting for pod{many} {','.join(pods)} to be scheduled")
    else:
        yield normal("WaitForFirstConsumer", NO_CONSUMER)
    yield from _plan_pending_claim(claim)
    if pods:
        yield Wait(WaitReason.POD_NOT_SCHEDULED, WaitData(pods=tuple(pods)))
    else:
        yield Wait(WaitReason.FIRST_CONSUMER)


def _provision(view: ClaimView, wanted: str) -> Iterator[ClaimStep | CommonStep]:
    claim, storage_class = view.claim, view.storage_class
    if not view.dynamic:
        # 1.51 dynamic provisioning is disabled
        yield from _wait_without_provisioner(view, Wait(WaitReason.PROVISIONING_DISABLED))
        return
    if storage_class is None:
        # 1.52 the class does not exist (any more)
        yield warning("ProvisioningFailed", f'storageclass.storage.k8s.io "{wanted}" not found')
        yield Wait(WaitReason.STORAGE_CLASS_NOT_FOUND, WaitData(class_name=wanted))
        return
    provisioner = storage_class.provisioner
    if not classes.is_external(provisioner):
        # 1.53 an in-tree provisioner that does not exist, kubernetes.io/no-provisioner included
        plugin = in_tree.find_plugin_by_name(provisioner)
        removed = in_tree.replacement_message(plugin) if plugin is not None else ""
        wait = Wait(WaitReason.NO_VOLUME_PLUGIN, WaitData(driver=provisioner), message=removed)
        yield warning("ProvisioningFailed", wait.text)
        yield from _wait_without_provisioner(view, wait)
        return
    # 1.54 external provisioner: annotate the claim and wait
    driver = classes.driver_name(provisioner)
    if claim.metadata.annotations.get(STORAGE_PROVISIONER_ANNOTATION) != driver:
        yield SetProvisioner(claim, driver, migrated=driver != provisioner)
    yield normal("ExternalProvisioning", AWAITS_OUTSIDE.format(driver))
    yield Wait(WaitReason.EXTERNAL_PROVISIONER, WaitData(driver=driver))


def _wait_without_provisioner(view: ClaimView, wait: Wait) -> Iterator[ClaimStep | CommonStep]:
    """No volume will be provisioned: list why each existing one does not fit."""
    refusals = matching.refusals(view.claim, view.unclaimed)
    if refusals:
        yield normal("NoVolumeFits", f"no persistent volume fits: {refusals}")
    yield structs.replace(wait, message="; ".join(text for text in (wait.message, refusals) if text))


def _plan_named_volume(
    claim: PersistentVolumeClaim, volume: PersistentVolume | None
) -> Iterator[ClaimStep | CommonStep]:
    name = claim.spec.volume_name
    if volume is None:
        # 2.1 claim is Pending, the volume it names does not exist
        yield from _plan_pending_claim(claim)
        yield Wait(WaitReason.VOLUME_NOT_FOUND, WaitData(volume=name))
    elif volume.spec.claim_ref is None:
        why = matching.mismatch(volume, claim)
        if why:
            # 2.2 claim is Pending, volume is unclaimed and does not fit
            message = f'Cannot bind to requested volume "{name}": {why}'
            yield warning("VolumeMismatch", message)
            yield from _plan_pending_claim(claim)
            yield Wait(WaitReason.VOLUME_MISMATCH, WaitData(volume=name), message=message)
        else:
            # 2.3 claim is Pending, volume is unclaimed and fits
            yield from bind(claim, volume)
    elif is_for(volume, claim):
        # 2.4 claim and volume name each other: bound whatever their sizes and classes
        yield from bind(claim, volume)
    else:
        # 2.5 claim is Pending, volume is claimed by another
        message = f'volume "{name}" already bound to a different claim.'
        yield warning("FailedBinding", message)
        if BOUND_BY_CONTROLLER_ANNOTATION not in claim.metadata.annotations:
            yield from _plan_pending_claim(claim)
        # 2.6 the binder wrote volumeName and bind-completed was removed: nothing is overwritten
        yield Wait(WaitReason.VOLUME_BOUND_TO_OTHER_CLAIM, WaitData(volume=name))


def _plan_bound_claim(
    claim: PersistentVolumeClaim, volume: PersistentVolume | None
) -> Iterator[ClaimStep | CommonStep]:
    if not claim.spec.volume_name:
        # 3.1 claim was bound, its volumeName was cleared
        yield from _plan_lost_claim(claim, "ClaimLost", LOST_REFERENCE)
    elif volume is None:
        # 3.2 claim was bound, its volume is gone
        yield from _plan_lost_claim(claim, "ClaimLost", LOST_VOLUME)
    elif volume.spec.claim_ref is None or volume.spec.claim_ref.uid == claim.uid:
        # 3.3 volume has lost its claimRef: bind it again
        # 3.4 volume is this claim's: complete the four writes, mostly none; the claim may be Lost no longer
        yield from bind(claim, volume)
    else:
        # 3.5 volume is another claim's, or reserved by name without a uid
        yield from _plan_lost_claim(claim, "ClaimMisbound", MISBOUND)


def _plan_lost_claim(
    claim: PersistentVolumeClaim, reason: str, message: str
) -> Iterator[ClaimStep | CommonStep]:
    if claim.status.phase != "Lost":
        yield SetClaimStatus(claim, "Lost")
        yield warning(reason, message)
    yield Wait(WaitReason.CLAIM_LOST, message=message)


def _plan_pending_claim(claim: PersistentVolumeClaim) -> Iterator[ClaimStep | CommonStep]:
    """A claim without a volume is Pending and has neither size nor modes."""
    status = claim.status
    shown = status.access_modes or status.capacity or status.current_volume_attributes_class_name is not None
    if status.phase != "Pending" or shown:
        yield SetClaimStatus(claim, "Pending")


def bind(claim: PersistentVolumeClaim, volume: PersistentVolume) -> Iterator[ClaimStep | CommonStep]:
    """Those of the four writes that are still missing."""
    ref = volume.spec.claim_ref
    if ref is None or not is_for(volume, claim) or ref.uid != claim.uid:
        # 6.1 the volume does not name the claim by uid
        yield SetClaimRef(volume, claim)
    if volume.status.phase != "Bound":
        # 6.2 the volume is not in phase Bound
        yield SetVolumePhase(volume, "Bound")
    if claim.spec.volume_name != volume.name or BIND_COMPLETED_ANNOTATION not in claim.metadata.annotations:
        # 6.3 the claim does not name the volume, or lacks bind-completed
        yield SetVolumeName(volume.name, claim)
    if claim.status.phase != "Bound" or set(claim.status.access_modes) != set(volume.spec.access_modes):
        # 6.4 the claim's status does not show the volume
        yield SetClaimStatus(claim, "Bound", volume)


# --- volumes


def plan_volume(view: VolumeView) -> Iterator[VolumeStep | CommonStep]:
    volume, claim = view.volume, view.claim
    fix = _migration(volume, volume.metadata.annotations.get(PROVISIONED_BY_ANNOTATION, "")) or _finalizers(
        volume
    )
    ref = volume.spec.claim_ref
    if fix is not None:
        # 0.2 volume's migrated-to or finalizers do not match its provisioner and policy
        yield fix
    elif ref is None or not ref.uid:
        # 4.1 volume is unclaimed; 4.2 or reserved by name for a future claim
        yield from _set_phase(volume, "Available")
    elif (claim is None or claim.uid != ref.uid) and not view.proven and not _is_known_gone(view):
        # 4.3 the caches have no claim of that name, 4.4 or one with another uid
        yield VerifyClaimDeleted(claim_key(volume))
    elif claim is None or claim.uid != ref.uid:
        # 4.5 volume's claim is gone, or another claim of its name exists
        yield from _release(view)
    else:
        yield from _plan_claimed(view, claim)


def _is_known_gone(view: VolumeView) -> bool:
    # A volume that was released before is not verified again, unless a claim of that name exists.
    return view.claim is None and view.volume.status.phase in FINISHED_PHASES


def _plan_claimed(view: VolumeView, claim: PersistentVolumeClaim) -> Iterator[VolumeStep | CommonStep]:
    volume = view.volume
    if claim.spec.volume_name == volume.name:
        # 4.8 claim and volume name each other
        yield from _set_phase(volume, "Bound")
    elif not claim.spec.volume_name and matching.mode(volume) != matching.mode(claim):
        # 4.6 volume is for a claim that cannot use it
        why = "due to incompatible volumeMode."
        for_volume = f'Cannot bind PersistentVolume to requested PersistentVolumeClaim "{claim.name}" {why}'
        for_claim = f'Cannot bind PersistentVolume "{volume.name}" to requested PersistentVolumeClaim {why}'
        yield warning("VolumeMismatch", for_volume)
        yield warning("VolumeMismatch", for_claim, about=claim)
        yield Wait(WaitReason.VOLUME_MISMATCH, WaitData(claim=claim.key), message=for_volume)
    elif not claim.spec.volume_name:
        # 4.7 claim does not name the volume yet: the claim's own plan continues
        yield Requeue(f"pvc/{claim.key}")
    elif PROVISIONED_BY_ANNOTATION in volume.metadata.annotations and _policy(volume) == "Delete":
        # 4.9 claim is bound to another volume; this one was provisioned for it and is not needed
        yield from _release(view)
    else:
        # 4.10 claim is bound to another volume; this one loses its claimRef and is Available again
        yield UnbindVolume(volume)
        yield from _set_phase(volume, "Available")


def _set_phase(volume: PersistentVolume, phase: str) -> Iterator[VolumeStep | CommonStep]:
    if volume.status.phase != phase:
        yield SetVolumePhase(volume, phase)


def _policy(volume: PersistentVolume) -> str:
    return volume.spec.persistent_volume_reclaim_policy or "Retain"


def _release(view: VolumeView) -> Iterator[VolumeStep | CommonStep]:
    volume = view.volume
    if volume.status.phase not in FINISHED_PHASES:  # Failed stays visible during reclaiming
        yield SetVolumePhase(volume, "Released")
    notes = volume.metadata.annotations
    match _policy(volume):
        case _ if MIGRATED_TO_ANNOTATION in notes:
            # 5.1 a CSI driver replaces the in-tree plugin
            yield Wait(WaitReason.DISK_DELETION, WaitData(driver=notes[MIGRATED_TO_ANNOTATION]))
        case "Retain":
            # 5.2 data and claimRef are kept until the user decides
            yield Wait(WaitReason.VOLUME_RETAINED)
        case "Delete" if _has_external_deleter(volume):
            # 5.3 its provisioner deletes the disk and the object
            who = notes.get(PROVISIONED_BY_ANNOTATION) or (volume.spec.csi.driver if volume.spec.csi else "")
            yield Wait(WaitReason.DISK_DELETION, WaitData(driver=who))
        case "Delete":
            # 5.4 there is no deleter
            yield from _set_failed(volume, "VolumeFailedDelete", NO_DELETER.format(volume.name))
        case "Recycle" if recycling.is_recyclable(volume):
            yield from recycling.recycle(volume, view.users, view.recycler)
        case "Recycle":
            # 5.5 there is no recycler
            yield from _set_failed(volume, "VolumeFailedRecycle", NO_RECYCLER)
        case _:
            # 5.6 unknown policy
            yield from _set_failed(volume, "VolumeUnknownReclaimPolicy", UNKNOWN_POLICY)


def _has_external_deleter(volume: PersistentVolume) -> bool:
    maker = volume.metadata.annotations.get(PROVISIONED_BY_ANNOTATION)
    if maker is not None and not maker.startswith(classes.IN_TREE):
        return True
    return volume.spec.csi is not None


def _set_failed(volume: PersistentVolume, reason: str, message: str) -> Iterator[VolumeStep | CommonStep]:
    if volume.status.phase != "Failed":
        yield SetVolumePhase(volume, "Failed", message)
        yield warning(reason, message)
    yield Wait(WaitReason.RECLAIM_FAILED, message=message)


# --- step 0 of both


def _migration(target: PersistentVolume | PersistentVolumeClaim, provisioner: str) -> FixMetadata | None:
    """`migrated-to` names the CSI driver that replaces an in-tree plugin; no other object has it."""
    if not provisioner:
        return None
    have = target.metadata.annotations.get(MIGRATED_TO_ANNOTATION)
    want = classes.MIGRATED.get(provisioner)
    if have == want or (have == provisioner and provisioner in classes.MIGRATION_DRIVERS):
        return None  # the second: the class names the CSI driver itself
    return FixMetadata(target, annotations={MIGRATED_TO_ANNOTATION: want})


def _finalizers(volume: PersistentVolume) -> FixMetadata | None:
    """Only for volumes of in-tree plugins; the external provisioner sets those of its own volumes."""
    maker = volume.metadata.annotations.get(PROVISIONED_BY_ANNOTATION, "")
    if not maker.startswith(classes.IN_TREE) or maker in classes.MIGRATED:
        return None
    have = volume.metadata.finalizers
    want = [f for f in have if f not in (PV_CONTROLLER_FINALIZER, EXTERNAL_PROVISIONER_FINALIZER)]
    held = PV_CONTROLLER_FINALIZER in have
    if _policy(volume) == "Delete" and (held or not volume.is_deleting):
        want.append(PV_CONTROLLER_FINALIZER)
    return None if set(want) == set(have) else FixMetadata(volume, finalizers=tuple(want))
