"""What a claim that names another VolumeAttributesClass needs next from its driver.

The target class is written to the claim before the driver is called, and stays the target until the outcome
of the call is known, whatever class the claim names by then. Only this process knows that an error was final;
after a restart the outcome of everything in progress counts as unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum

from msgspec import Struct

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, SecretReference
from volplane.api.storage import VolumeAttributesClass
from volplane.rules.steps import CommonStep, normal, warning
from volplane.rules.waits import Wait, WaitData, WaitReason

MODIFYING = "ModifyingVolume"
MODIFY_ERROR = "ModifyVolumeError"
SECRET_NAME = "volume.kubernetes.io/controller-modify-secret-name"
SECRET_NAMESPACE = "volume.kubernetes.io/controller-modify-secret-namespace"


class ModifyVolumeState(StrEnum):
    PENDING = "Pending"
    IN_PROGRESS = "InProgress"
    INFEASIBLE = "Infeasible"


class LastModification(Struct, frozen=True):
    """What this process remembers of the claim's last attempt."""

    is_final: bool = False  # it ended with a final error
    retry_after: float = 0.0  # seconds before the next attempt after an infeasible error


class MarkModifyPending(Struct, frozen=True):
    """Set the status Pending: the class does not exist yet."""


class RecordTargetClass(Struct, frozen=True):
    """Write the target class to the claim."""

    target: str


class ModifyVolume(Struct, frozen=True):
    target: VolumeAttributesClass


class CancelModification(Struct, frozen=True):
    """Remove the condition: the claim names no class any more."""


Step = MarkModifyPending | RecordTargetClass | ModifyVolume | CancelModification


def plan(
    claim: PersistentVolumeClaim,
    volume: PersistentVolume | None,
    driver: str,
    last: LastModification,
    classes: Callable[[str], VolumeAttributesClass | None],
) -> Iterator[Step | CommonStep]:
    if not needs_modification(claim) or not is_ours(volume, driver):
        return
    wanted = claim.spec.volume_attributes_class_name or ""
    status = claim.status.modify_volume_status
    if last.retry_after > 0 and status is not None and status.target_volume_attributes_class_name == wanted:
        yield Wait(WaitReason.MODIFY_INFEASIBLE, WaitData(driver=driver), last.retry_after)
        return
    under_way = status is not None and status.status == ModifyVolumeState.IN_PROGRESS
    if not wanted and not under_way:
        yield from _cancel(claim)
    elif status is not None and under_way and (not last.is_final or not wanted):
        yield from _resume_modification(status.target_volume_attributes_class_name, classes)
    else:
        yield from _start_modification(claim, wanted, classes)


def needs_modification(claim: PersistentVolumeClaim) -> bool:
    """The claim is bound, and names another class than it has, or is being modified."""
    if claim.status.phase != "Bound":
        return False
    wanted = claim.spec.volume_attributes_class_name or ""
    has = claim.status.current_volume_attributes_class_name or ""
    return claim.status.modify_volume_status is not None or wanted != has


def is_same_target(claim: PersistentVolumeClaim) -> bool:
    """The claim names the class that was tried last."""
    status = claim.status.modify_volume_status
    wanted = claim.spec.volume_attributes_class_name
    return status is not None and status.target_volume_attributes_class_name == wanted


def _cancel(claim: PersistentVolumeClaim) -> Iterator[Step | CommonStep]:
    # The volume keeps the class it has: only the last result is recorded, no history.
    if any(c.type == MODIFYING for c in claim.status.conditions):
        yield normal("VolumeModifyCanceled", "Cancelled modify.")
        yield CancelModification()


def _resume_modification(
    target: str, classes: Callable[[str], VolumeAttributesClass | None]
) -> Iterator[Step | CommonStep]:
    found = classes(target)
    if found is None:
        yield warning("VolumeModifyFailed", _missing_class_message(target))
        yield Wait(WaitReason.ATTRIBUTES_CLASS_NOT_FOUND, WaitData(class_name=target))
    else:
        yield ModifyVolume(found)


def _start_modification(
    claim: PersistentVolumeClaim, wanted: str, classes: Callable[[str], VolumeAttributesClass | None]
) -> Iterator[Step | CommonStep]:
    found = classes(wanted)
    if found is None:
        status = claim.status.modify_volume_status
        if status is None or status.status != ModifyVolumeState.PENDING:
            yield warning("VolumeModifyFailed", _missing_class_message(wanted))
            yield MarkModifyPending()
        yield Wait(WaitReason.ATTRIBUTES_CLASS_NOT_FOUND, WaitData(class_name=wanted))
        return
    yield RecordTargetClass(wanted)
    yield normal("VolumeModify", f"external resizer is modifying volume {claim.name} with vac {wanted}")
    yield ModifyVolume(found)


def _missing_class_message(name: str) -> str:
    return f'VAC "{name}" does not exist.'


def is_ours(volume: PersistentVolume | None, driver: str) -> bool:
    return volume is not None and volume.spec.csi is not None and volume.spec.csi.driver == driver


def secret_reference(volume: PersistentVolume) -> SecretReference | None:
    """The annotated secret for modifications, otherwise the one for expansions."""
    notes = volume.metadata.annotations
    name, namespace = notes.get(SECRET_NAME), notes.get(SECRET_NAMESPACE)
    if name and namespace:
        return SecretReference(name=name, namespace=namespace)
    return volume.spec.csi.controller_expand_secret_ref if volume.spec.csi is not None else None


def mutable_parameters(
    claim: PersistentVolumeClaim, volume: PersistentVolume, target: VolumeAttributesClass, *, extra: bool
) -> dict[str, str]:
    found = dict(target.parameters)
    if extra:
        found["csi.storage.k8s.io/pvc/name"] = claim.name
        found["csi.storage.k8s.io/pvc/namespace"] = claim.namespace
        found["csi.storage.k8s.io/pv/name"] = volume.name
    return found


def attributes_classes(claim: PersistentVolumeClaim) -> list[str]:
    """The classes that the claim names or is being modified to; an index function."""
    status = claim.status.modify_volume_status
    names = {claim.spec.volume_attributes_class_name or ""}
    names.add(status.target_volume_attributes_class_name if status is not None else "")
    return sorted(names - {""})


def relevant_fields(claim: PersistentVolumeClaim | None) -> object:
    """The fields whose change wakes the claim. Our own writes must not cut a wait short."""
    if claim is None:
        return None
    return claim.uid, claim.status.phase, claim.spec.volume_name, claim.spec.volume_attributes_class_name
