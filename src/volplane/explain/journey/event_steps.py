"""Which step an event or a field manager stands for, in any Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from volplane.api.core import Event
from volplane.explain.journey.model import Lane, Phase

# By reason: who took the step, whom it asked, and the part of the journey.
EVENTS: dict[str, tuple[Lane, Lane, Phase]] = {
    "WaitForFirstConsumer": (Lane.BINDER, Lane.BINDER, Phase.PROVISION),
    "WaitForPodScheduled": (Lane.BINDER, Lane.BINDER, Phase.PROVISION),
    "ExternalProvisioning": (Lane.BINDER, Lane.PROVISIONER, Phase.PROVISION),
    "Provisioning": (Lane.PROVISIONER, Lane.DRIVER_CONTROLLER, Phase.PROVISION),
    "ProvisioningSucceeded": (Lane.PROVISIONER, Lane.DRIVER_CONTROLLER, Phase.PROVISION),
    "ProvisioningFailed": (Lane.PROVISIONER, Lane.DRIVER_CONTROLLER, Phase.PROVISION),
    "FailedBinding": (Lane.BINDER, Lane.BINDER, Phase.BIND),
    "VolumeMismatch": (Lane.BINDER, Lane.BINDER, Phase.BIND),
    "Scheduled": (Lane.SCHEDULER, Lane.APISERVER, Phase.SCHEDULE),
    "FailedScheduling": (Lane.SCHEDULER, Lane.SCHEDULER, Phase.SCHEDULE),
    "Preempted": (Lane.SCHEDULER, Lane.APISERVER, Phase.STOP),
    "SuccessfulAttachVolume": (Lane.ATTACH_DETACH, Lane.ATTACHER, Phase.ATTACH),
    "FailedAttachVolume": (Lane.ATTACH_DETACH, Lane.ATTACHER, Phase.ATTACH),
    "SuccessfulMountVolume": (Lane.KUBELET, Lane.DRIVER_NODE, Phase.PUBLISH),
    "FailedMount": (Lane.KUBELET, Lane.DRIVER_NODE, Phase.PUBLISH),
    "FailedMapVolume": (Lane.KUBELET, Lane.DRIVER_NODE, Phase.PUBLISH),
    "VolumeResizeFailed": (Lane.RESIZER, Lane.DRIVER_CONTROLLER, Phase.EXPAND),
    "VolumeResizeSuccessful": (Lane.RESIZER, Lane.DRIVER_CONTROLLER, Phase.EXPAND),
    "FileSystemResizeRequired": (Lane.RESIZER, Lane.KUBELET, Phase.EXPAND),
    "FileSystemResizeSuccessful": (Lane.KUBELET, Lane.DRIVER_NODE, Phase.EXPAND),
    "Resizing": (Lane.RESIZER, Lane.DRIVER_CONTROLLER, Phase.EXPAND),
    "Created": (Lane.KUBELET, Lane.CONTAINER, Phase.START),
    "Started": (Lane.KUBELET, Lane.CONTAINER, Phase.START),
    "Killing": (Lane.KUBELET, Lane.CONTAINER, Phase.STOP),
    "Evicted": (Lane.KUBELET, Lane.CONTAINER, Phase.STOP),
    "VolumeFailedDelete": (Lane.PROVISIONER, Lane.DRIVER_CONTROLLER, Phase.DELETE),
    "VolumeDelete": (Lane.BINDER, Lane.BINDER, Phase.DELETE),
}
SHORT_KINDS = {
    "PersistentVolumeClaim": "pvc",
    "PersistentVolume": "pv",
    "VolumeAttachment": "va",
    "Pod": "pod",
}
MANAGERS = {
    "csi-attacher": Lane.ATTACHER,
    "csi-provisioner": Lane.PROVISIONER,
    "csi-resizer": Lane.RESIZER,
    "kube-scheduler": Lane.SCHEDULER,
    "kubelet": Lane.KUBELET,
}


class EventStep(Struct, frozen=True):
    subject: str
    lane: Lane
    to: Lane
    phase: Phase


def describe_event(event: Event) -> EventStep:
    about = event.involved_object
    key = (
        f"{about.namespace}/{about.name}" if about.namespace and about.kind in ("Pod", _CLAIM) else about.name
    )
    subject = f"{SHORT_KINDS.get(about.kind, about.kind.lower())}/{key}"
    lane, to, phase = EVENTS.get(event.reason, (Lane.CONTROLLERS, Lane.CONTROLLERS, Phase.OTHER))
    return EventStep(subject, lane, to, phase)


_CLAIM = "PersistentVolumeClaim"


def lane_of_manager(manager: str, kind: str, fields: Iterable[str]) -> Lane:
    """The component behind a field manager; the controllers of one process differ by what they write."""
    if (found := MANAGERS.get(manager)) is not None:
        return found
    if manager != "kube-controller-manager":
        return Lane.USER if manager.startswith(("kubectl", "helm", "argocd")) else Lane.CONTROLLERS
    if kind in ("pvc", "pv") and any(name in _BOUND for name in fields):
        return Lane.BINDER
    return Lane.ATTACH_DETACH if kind == "va" else Lane.CONTROLLERS


_BOUND = frozenset({"spec.volumeName", "spec.claimRef", "status.phase", "status.capacity"})


def phase_of_manager(kind: str, fields: Iterable[str]) -> Phase:
    written = set(fields)
    match kind:
        case "pvc" | "pv":
            return Phase.BIND if written & _BOUND else Phase.PROVISION
        case "va":
            return Phase.ATTACH
        case "pod" if "spec.nodeName" in written:
            return Phase.SCHEDULE
    return Phase.OTHER
