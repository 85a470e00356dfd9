"""In which lane and phase a recorded step belongs: the only place that knows the names of steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from volplane.base.trace import Span
from volplane.explain.journey.model import Lane, Phase, StateChange

LANES = {
    "apiserver": Lane.APISERVER,
    "attachdetach-controller": Lane.ATTACH_DETACH,
    "cloud": Lane.CLOUD,
    "csi-attacher": Lane.ATTACHER,
    "csi-provisioner": Lane.PROVISIONER,
    "csi-resizer": Lane.RESIZER,
    "csi-snapshotter": Lane.SNAPSHOTTER,
    "default-scheduler": Lane.SCHEDULER,
    "ebs-plugin": Lane.DRIVER_CONTROLLER,
    "flexvolume": Lane.DRIVER_NODE,
    "host": Lane.DRIVER_NODE,
    "kubelet": Lane.KUBELET,
    "persistentvolume-controller": Lane.BINDER,
    "snapshot-controller": Lane.SNAPSHOTTER,
}

# CSI methods by phase; a method of the node service is called by the kubelet.
CSI_PHASES = {
    "CreateVolume": Phase.PROVISION,
    "ControllerPublishVolume": Phase.ATTACH,
    "NodeStageVolume": Phase.STAGE,
    "NodePublishVolume": Phase.PUBLISH,
    "NodeUnpublishVolume": Phase.UNPUBLISH,
    "NodeUnstageVolume": Phase.UNSTAGE,
    "ControllerUnpublishVolume": Phase.DETACH,
    "DeleteVolume": Phase.DELETE,
    "ControllerExpandVolume": Phase.EXPAND,
    "ControllerModifyVolume": Phase.EXPAND,
    "NodeExpandVolume": Phase.EXPAND,
    "CreateSnapshot": Phase.SNAPSHOT,
    "DeleteSnapshot": Phase.SNAPSHOT,
    "ListSnapshots": Phase.SNAPSHOT,
}

# Steps of components that are no CSI calls.
STEP_PHASES: Mapping[tuple[str, str], Phase] = {
    ("attachdetach-controller", "attach"): Phase.ATTACH,
    ("attachdetach-controller", "attached"): Phase.ATTACH,
    ("attachdetach-controller", "detach"): Phase.DETACH,
    ("csi-attacher", "hold volume"): Phase.ATTACH,
    ("csi-attacher", "note node"): Phase.ATTACH,
    ("csi-attacher", "attached"): Phase.ATTACH,
    ("csi-attacher", "detached"): Phase.DETACH,
    ("csi-attacher", "release volume"): Phase.DELETE,
    ("csi-provisioner", "write order"): Phase.PROVISION,
    ("csi-provisioner", "save volume"): Phase.PROVISION,
    ("csi-provisioner", "remove order"): Phase.PROVISION,
    ("csi-provisioner", "delete volume object"): Phase.DELETE,
    ("default-scheduler", "filter and score"): Phase.SCHEDULE,
    ("default-scheduler", "selected-node"): Phase.SCHEDULE,
    ("default-scheduler", "claimRef"): Phase.BIND,
    ("default-scheduler", "bind"): Phase.SCHEDULE,
    ("default-scheduler", "preempt"): Phase.SCHEDULE,
    ("kubelet", "AttachVolume"): Phase.ATTACH,
    ("kubelet", "DetachVolume"): Phase.DETACH,
    ("kubelet", "ExpandInUseVolume"): Phase.EXPAND,
    ("kubelet", "MountDevice"): Phase.STAGE,
    ("kubelet", "MountVolume"): Phase.PUBLISH,
    ("kubelet", "MountVolumes"): Phase.PUBLISH,
    ("kubelet", "UnmountDevice"): Phase.UNSTAGE,
    ("kubelet", "UnmountVolume"): Phase.UNPUBLISH,
    ("kubelet", "StartContainer"): Phase.START,
    ("kubelet", "StopContainer"): Phase.STOP,
    ("persistentvolume-controller", "WaitForFirstConsumer"): Phase.PROVISION,
    ("persistentvolume-controller", "WaitForPodScheduled"): Phase.PROVISION,
    ("persistentvolume-controller", "ExternalProvisioning"): Phase.PROVISION,
    ("persistentvolume-controller", "storage-provisioner"): Phase.PROVISION,
    ("persistentvolume-controller", "volume Released"): Phase.DELETE,
    ("persistentvolume-controller", "volume Failed"): Phase.DELETE,
}
COMPONENT_PHASES = {
    "persistentvolume-controller": Phase.BIND,
    "csi-resizer": Phase.EXPAND,
    "csi-snapshotter": Phase.SNAPSHOT,
    "snapshot-controller": Phase.SNAPSHOT,
}
FLEX_PHASES = {
    "attach": Phase.ATTACH,
    "waitforattach": Phase.ATTACH,
    "isattached": Phase.ATTACH,
    "mountdevice": Phase.STAGE,
    "mount": Phase.PUBLISH,
    "unmount": Phase.UNPUBLISH,
    "unmountdevice": Phase.UNSTAGE,
    "detach": Phase.DETACH,
    "expandvolume": Phase.EXPAND,
    "expandfs": Phase.EXPAND,
}
CLOUD_PHASES = {
    "CreateVolume": Phase.PROVISION,
    "AttachVolume": Phase.ATTACH,
    "DetachVolume": Phase.DETACH,
    "DeleteVolume": Phase.DELETE,
    "ModifyVolume": Phase.EXPAND,
    "CreateSnapshot": Phase.SNAPSHOT,
    "DeleteSnapshot": Phase.SNAPSHOT,
}
# Writes without a step around them, by verb and kind.
WRITE_PHASES = {
    ("create", "pvc"): Phase.PROVISION,
    ("create", "pv"): Phase.PROVISION,
    ("create", "va"): Phase.ATTACH,
    ("create", "pod"): Phase.SCHEDULE,
    ("delete", "pvc"): Phase.DELETE,
    ("delete", "pv"): Phase.DELETE,
    ("delete", "va"): Phase.DETACH,
    ("delete", "pod"): Phase.STOP,
}


def lane_of(span: Span) -> Lane:
    """The lane of the component that took a step."""
    if span.component == "driver":
        return Lane.DRIVER_NODE if span.step.startswith("Node") else Lane.DRIVER_CONTROLLER
    return LANES.get(span.component, Lane.CONTROLLERS)


def target_of(span: Span) -> Lane:
    """The lane that a step asks; its own for work that it does itself."""
    own = lane_of(span)
    if span.component == "driver":
        return own
    if span.step in CSI_PHASES and own not in (Lane.CLOUD, Lane.DRIVER_NODE):
        if span.component == "ebs-plugin":
            return Lane.CLOUD
        return Lane.DRIVER_NODE if span.step.startswith("Node") else Lane.DRIVER_CONTROLLER
    match span.component:
        case "apiserver":
            return Lane.STORE
        case "ebs-plugin":
            return Lane.CLOUD
        case "host" | "cloud" | "flexvolume":
            return own
        case "kubelet":
            return Lane.CONTAINER if span.step in ("StartContainer", "StopContainer") else own
    is_own = span.start == span.end or span.step == "filter and score"
    return own if is_own else Lane.APISERVER


def phase_of(span: Span) -> Phase | None:
    """The phase of a step; None if only the step around it tells."""
    match span.component:
        case "flexvolume":
            return FLEX_PHASES.get(span.step, Phase.OTHER)
        case "cloud" | "ebs-plugin":
            return CLOUD_PHASES.get(span.step)
        case "host":
            return None
    found = CSI_PHASES.get(span.step) or STEP_PHASES.get((span.component, span.step))
    return found or COMPONENT_PHASES.get(span.component)


def phase_of_removal(subject: str, changes: Iterable[StateChange]) -> Phase | None:
    """The phase of a write that removes an object or stores that it is to be removed; None for others."""
    kind = subject.partition("/")[0]
    for change in changes:
        if (change.field == "exists" and not change.after) or change.field == "metadata.deletionTimestamp":
            return WRITE_PHASES.get(("delete", kind))
    return None


def phase_of_write(kind: str, verb: str, changes: Iterable[StateChange]) -> Phase:
    """The phase of a write that was made outside of any step, such as a user's."""
    for change in changes:
        match change.field.partition("[")[0]:
            case "exists":
                return WRITE_PHASES.get(("create" if change.after else "delete", kind), Phase.OTHER)
            case "metadata.deletionTimestamp":
                return WRITE_PHASES.get(("delete", kind), Phase.OTHER)
            case "metadata.finalizers" if not change.after:
                return WRITE_PHASES.get(("delete", kind), Phase.OTHER)
            case "spec.nodeName":
                return Phase.SCHEDULE
            case "status.volumesInUse" | "status.volumesAttached":
                return Phase.ATTACH if change.after else Phase.DETACH
            case "status.phase" if kind == "pod" and change.after in POD_PHASES:
                return POD_PHASES[change.after]
    return WRITE_PHASES.get((verb, kind), Phase.OTHER)


POD_PHASES = {"Running": Phase.START, "Succeeded": Phase.STOP, "Failed": Phase.STOP}
USERS = {
    "system:kube-controller-manager": Lane.CONTROLLERS,
    "system:kube-scheduler": Lane.SCHEDULER,
    "system:serviceaccount:kube-system:attachdetach-controller": Lane.ATTACH_DETACH,
    "system:serviceaccount:kube-system:persistent-volume-binder": Lane.BINDER,
}


MANAGERS = {
    "kube-controller-manager": Lane.CONTROLLERS,
    "kube-scheduler": Lane.SCHEDULER,
    "volplane": Lane.CONTROLLERS,
}


def lane_of_user(name: str, manager: str, changes: Iterable[StateChange] = ()) -> Lane:
    """The lane of a request's sender, by its name, its field manager, or what only one component writes."""
    fields = {change.field.partition("[")[0] for change in changes}
    if "status.volumesAttached" in fields:
        return Lane.ATTACH_DETACH
    if "status.volumesInUse" in fields:
        return Lane.KUBELET
    if (found := USERS.get(name) or LANES.get(manager) or MANAGERS.get(manager)) is not None:
        return found
    if name.startswith("system:node:"):
        return Lane.KUBELET
    return Lane.CONTROLLERS if name.startswith("system:") and name != "system:admin" else Lane.USER
