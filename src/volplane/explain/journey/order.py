"""The order that the contracts prescribe for the steps of a volume, and what a journey lacks of it.

Each milestone names the milestones that must be reached before its first step begins. A milestone is reached
when its first step has ended. A write is reached as soon as it begins: a watcher may act on the committed
object before the API server has finished the request, all the more through a second API server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec import Struct

from volplane.explain.journey.model import JourneyStep, StepOutcome


class Milestone(Struct, frozen=True):
    name: str
    component: str
    what: str
    subject: str = ""  # prefix of the subject
    field: str = ""  # a field that the step changes
    after_change: str | None = None  # its new value; None: any
    after: tuple[str, ...] = ()  # milestones that are reached before

    def matches(self, step: JourneyStep) -> bool:
        if step.outcome not in (StepOutcome.OK, StepOutcome.CUT_OFF):
            return False
        if self.component != step.component or (self.what and self.what != step.what):
            return False
        return step.subject.startswith(self.subject) and (not self.field or self._has_change(step))

    def _has_change(self, step: JourneyStep) -> bool:
        return any(
            change.field.startswith(self.field) and self.after_change in (None, change.after)
            for change in step.changes
        )


API = "apiserver"

PROVISION = (
    Milestone("claim stored", API, "create", "pvc/"),
    Milestone("order written", "csi-provisioner", "write order", after=("claim stored",)),
    Milestone("CreateVolume", "csi-provisioner", "CreateVolume", after=("order written",)),
    Milestone("CreateVolume in the driver", "driver", "CreateVolume"),
    Milestone("disk created", "cloud", "CreateVolume", after=("order written",)),
    Milestone("volume stored", API, "create", "pv/", after=("CreateVolume",)),
    Milestone("volume Bound", API, "", "pv/", "status.phase", "Bound", after=("volume stored",)),
    Milestone("volumeName set", API, "", "pvc/", "spec.volumeName", after=("volume stored",)),
    Milestone("claim Bound", API, "", "pvc/", "status.phase", "Bound", after=("volumeName set",)),
)
LATE_BINDING = (
    Milestone("node selected", "default-scheduler", "selected-node", after=("claim stored", "pod stored")),
)
FORWARDS = (
    Milestone("pod stored", API, "create", "pod/"),
    Milestone("pod bound", API, "", "pod/", "spec.nodeName", after=("pod stored", "volumeName set")),
    Milestone("volumesInUse", API, "", "node/", "status.volumesInUse", "yes", after=("pod bound",)),
    Milestone("attachment stored", API, "create", "va/", after=("pod bound",)),
    Milestone("finalizer of the attachment", API, "", "va/", "metadata.finalizers[external-attacher", "yes"),
    Milestone(
        "ControllerPublishVolume",
        "csi-attacher",
        "ControllerPublishVolume",
        after=("attachment stored", "finalizer of the attachment"),
    ),
    Milestone("disk attached", "cloud", "AttachVolume", after=("finalizer of the attachment",)),
    Milestone(
        "status.attached", API, "", "va/", "status.attached", "true", after=("ControllerPublishVolume",)
    ),
    Milestone(
        "volumesAttached", API, "", "node/", "status.volumesAttached", "yes", after=("status.attached",)
    ),
    Milestone("NodeStageVolume", "kubelet", "NodeStageVolume", after=("volumesAttached", "volumesInUse")),
    Milestone("NodePublishVolume", "kubelet", "NodePublishVolume", after=("NodeStageVolume",)),
    Milestone("container started", "kubelet", "StartContainer", after=("NodePublishVolume",)),
)
BACK = (
    Milestone("pod deletion stored", API, "", "pod/", "metadata.deletionTimestamp"),
    Milestone("container stopped", "kubelet", "StopContainer", after=("pod deletion stored",)),
    Milestone("NodeUnpublishVolume", "kubelet", "NodeUnpublishVolume", after=("container stopped",)),
    Milestone("NodeUnstageVolume", "kubelet", "NodeUnstageVolume", after=("NodeUnpublishVolume",)),
    Milestone(
        "not in volumesInUse", API, "", "node/", "status.volumesInUse", "", after=("NodeUnstageVolume",)
    ),
    Milestone("detach asked for", "attachdetach-controller", "detach", after=("not in volumesInUse",)),
    Milestone(
        "attachment deletion stored",
        API,
        "",
        "va/",
        "metadata.deletionTimestamp",
        after=("not in volumesInUse",),
    ),
    Milestone(
        "not in volumesAttached",
        API,
        "",
        "node/",
        "status.volumesAttached",
        "",
        after=("not in volumesInUse",),
    ),
    Milestone(
        "ControllerUnpublishVolume",
        "csi-attacher",
        "ControllerUnpublishVolume",
        after=("attachment deletion stored",),
    ),
    Milestone("disk detached", "cloud", "DetachVolume", after=("attachment deletion stored",)),
    Milestone("attachment removed", API, "", "va/", "exists", "", after=("ControllerUnpublishVolume",)),
)
DELETE = (
    Milestone("claim deletion stored", API, "", "pvc/", "metadata.deletionTimestamp"),
    Milestone("claim removed", API, "", "pvc/", "exists", "", after=("claim deletion stored",)),
    Milestone("volume Released", API, "", "pv/", "status.phase", "Released", after=("claim removed",)),
    Milestone("DeleteVolume", "csi-provisioner", "DeleteVolume", after=("volume Released",)),
    Milestone("disk deleted", "cloud", "DeleteVolume", after=("volume Released",)),
    Milestone("volume removed", API, "", "pv/", "exists", "", after=("DeleteVolume",)),
)


def find_order_problems(steps: Sequence[JourneyStep], milestones: Iterable[Milestone]) -> list[str]:
    """Milestones that are missing, and those whose step began before what must come first."""
    expected = tuple(milestones)
    matching = {m.name: found for m in expected if (found := [step for step in steps if m.matches(step)])}
    begun = {name: min(step.at for step in found) for name, found in matching.items()}
    reached = {name: min(map(_reached_at, found)) for name, found in matching.items()}
    problems = [f"{m.name}: missing" for m in expected if m.name not in matching]
    for milestone in expected:
        if milestone.name in begun:
            early = (n for n in milestone.after if n in reached and begun[milestone.name] < reached[n])
            problems += [f"{milestone.name}: before {name}" for name in early]
    return problems


def _reached_at(step: JourneyStep) -> datetime:
    return step.at if step.component == API else step.end
