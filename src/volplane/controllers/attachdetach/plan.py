"""Where to attach a volume and from where to detach it, decided from objects alone.

The state of an attachment is read from its VolumeAttachment: without one the volume is detached, with
`attached` it is attached, and anything else is uncertain until the attacher has answered. So nothing is lost
when the controller crashes.

Detaching is safe because of the order in which node and controller write and read. The node writes
`volumesInUse` first and then reads `volumesAttached`; the controller removes the volume from
`volumesAttached` first and then reads `volumesInUse`. Whichever comes second sees the other's write.

An uncertain attachment on another node does not block an exclusive volume forever. A failed attach does not
count. A detach gets the attacher's whole timeout even if it failed meanwhile, because the disk is most likely
still attached. After that the driver decides, as it always does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from volplane.api import names
from volplane.api.core import PersistentVolumeSpec, Pod
from volplane.rules.steps import CommonStep
from volplane.rules.waits import UNTIL_CHANGED, Wait, WaitData, WaitReason

UNMOUNT_GRACE = 360.0  # seconds before a volume is detached by force from a node that is not ready
ATTACH_TIMEOUT = 120.0  # seconds for the attacher to attach or detach
TIMER_TOLERANCE = 0.01  # seconds by which a timer may fire early

DELETING = "volume attachment is being deleted"
TIMED_OUT = "timed out waiting for external-attacher of {} CSI driver to attach volume {}"
FLEX_TIMED_OUT = "timed out waiting for FlexVolume driver {} to attach volume {}"
EXCLUSIVE = "Volume is already exclusively attached to one node and can't be attached to another"


class ExistingAttachment(Struct, frozen=True):
    """One VolumeAttachment of the volume."""

    node: str
    name: str
    uid: str = ""
    attached: bool = False
    device_path: str = ""  # what a FlexVolume driver answered; CSI drivers have none
    deleting: bool = False
    by_hand: bool = False  # someone else created it, under a name of their own: only they delete it
    attach_error: str = ""
    detach_error: str = ""
    unwanted_for: float = 0.0  # seconds since its last pod left, as seen by this process
    waiting_for: float = 0.0  # seconds since the attacher was asked to attach or detach it


class NodeFacts(Struct, frozen=True):
    """What a plan needs to know of a node, for one volume."""

    ready: bool = True
    fenced: bool = False  # out-of-service taint: the operator confirms that nothing runs there
    gone: bool = False  # its Node was deleted, which confirms the same; the disk service decides
    in_use: bool = False  # the volume is in volumesInUse, or was when the node was last seen
    listed: bool = False  # the volume is in volumesAttached
    device_path: str = ""  # with which it is listed


class AttachDetachView(Struct, frozen=True):
    title: str  # name of the PersistentVolume, for messages
    driver: str = ""
    handle: str = ""
    inline: PersistentVolumeSpec | None = None  # of a volume that pods have without a PersistentVolume
    unique_name: str = ""
    is_flex: bool = False
    flex_missing: str = ""  # why its FlexVolume driver cannot be called
    flex_loading: bool = False  # the driver may become usable in a moment
    shareable: bool = False
    wanted: Mapping[str, Sequence[Pod]] = {}  # node → pods that need the volume there
    attachments: Sequence[ExistingAttachment] = ()
    nodes: Mapping[str, NodeFacts] = {}
    reported: frozenset[str] = frozenset()  # nodes whose pods got the Multi-Attach event
    grace: float = UNMOUNT_GRACE
    answer: float = ATTACH_TIMEOUT
    force: bool = True  # detach by force after the grace period

    def attachment_name(self, node: str) -> str:
        if self.is_flex:
            return names.flex_attachment_name(self.unique_name, node)
        return names.attachment_name(self.handle, self.driver, node)


class CreateAttachment(Struct, frozen=True):
    node: str


class DeleteAttachment(Struct, frozen=True):
    attachment: ExistingAttachment
    check: bool = True  # read the node's status live first
    forced: Literal["", "timeout", "out-of-service", "node-deleted"] = ""


class AddToVolumesAttached(Struct, frozen=True):
    """Add the volume to the node's `volumesAttached`: it is attached, and the node may mount it."""

    node: str
    device_path: str = ""


class RemoveFromVolumesAttached(Struct, frozen=True):
    node: str


class ReportAttachFailure(Struct, frozen=True):
    """Record the failure as an event on the pods of the node, with backoff."""

    node: str
    message: str


class ReportMultiAttach(Struct, frozen=True):
    """Record once, on the pods of the node, that the volume is attached elsewhere and which pods use it."""

    node: str
    pods: Sequence[Pod] = ()


Step = (
    CreateAttachment
    | DeleteAttachment
    | AddToVolumesAttached
    | RemoveFromVolumesAttached
    | ReportAttachFailure
    | ReportMultiAttach
)


def plan(view: AttachDetachView) -> Iterator[Step | CommonStep]:
    # Detaches first: a volume that moves is detached before it is attached to the new node.
    attached_to = {held.node for held in view.attachments}
    serving = serving_attachments(view)
    # What an exclusive volume does before it may be attached to another node, and on which node.
    first: tuple[WaitReason, str] | None = None
    for held in view.attachments:
        if held.node not in view.wanted:
            steps = list(plan_detach(view, held))
            if any(isinstance(step, DeleteAttachment) for step in steps):
                first = WaitReason.DETACHING_FROM_OTHER_NODE, held.node
            yield from steps
    for node, place in sorted(view.nodes.items()):
        # The attachment was deleted by someone else, or the node status was not updated.
        if place.listed and node not in attached_to:
            yield RemoveFromVolumesAttached(node)
    for node in sorted(view.wanted):
        if node in serving:
            yield from plan_pending_attach(view, serving[node])
        elif view.flex_missing:
            yield from plan_missing_driver(view, node)
        elif view.shareable:
            yield CreateAttachment(node)
        elif first is not None:
            yield Wait(first[0], WaitData(node=node, nodes=(first[1],)))
        else:
            steps = list(plan_exclusive_attach(view, node))
            if any(isinstance(step, CreateAttachment) for step in steps):
                first = WaitReason.ATTACHING_TO_OTHER_NODE, node
            yield from steps


# --- detaching


def plan_detach(view: AttachDetachView, held: ExistingAttachment) -> Iterator[Step | CommonStep]:
    place = view.nodes.get(held.node, NodeFacts(ready=False))
    overdue = view.force and held.unwanted_for >= view.grace - TIMER_TOLERANCE
    if held.deleting:
        if place.listed:
            yield RemoveFromVolumesAttached(held.node)
        yield _attacher_wait(view, held)
    elif held.by_hand:
        if place.listed and not place.in_use:
            yield RemoveFromVolumesAttached(held.node)
    elif place.fenced or place.gone or overdue:
        forced: Literal["timeout", "out-of-service", "node-deleted"] = "timeout"
        if not overdue:
            forced = "out-of-service" if place.fenced else "node-deleted"
        if place.in_use and place.ready and not place.fenced:
            # A healthy node gets as much time as it needs.
            yield Wait(WaitReason.MOUNTED_ON_NODE, WaitData(node=held.node))
        else:
            yield from _plan_delete(place, DeleteAttachment(held, check=False, forced=forced))
    elif not place.in_use:
        yield from _plan_delete(place, DeleteAttachment(held))
    elif place.ready:
        yield Wait(WaitReason.MOUNTED_ON_NODE, WaitData(node=held.node))
    elif view.force:
        left = view.grace - held.unwanted_for
        yield Wait(WaitReason.FORCE_DETACH, WaitData(node=held.node), left)
    else:
        yield Wait(WaitReason.NODE_NOT_READY, WaitData(node=held.node))


def _plan_delete(place: NodeFacts, detach: DeleteAttachment) -> Iterator[Step | CommonStep]:
    if place.listed:
        yield RemoveFromVolumesAttached(detach.attachment.node)
    yield detach


# --- attaching


def serving_attachments(view: AttachDetachView) -> dict[str, ExistingAttachment]:
    """The attachment that pods use, for each node that has one.

    The kubelet reads that of a CSI volume by its derived name, so one made by hand does not serve. While it
    is being deleted, it is waited for: the driver detaches, and an attach at the same time would be lost.
    """
    usable = (held for held in view.attachments if not held.by_hand or held.deleting or view.is_flex)
    return {held.node: held for held in sorted(usable, key=lambda held: not held.by_hand)}


def plan_exclusive_attach(view: AttachDetachView, node: str) -> Iterator[Step | CommonStep]:
    """An exclusive volume is wanted on a node where it has no attachment of this controller yet."""
    others = [held for held in view.attachments if held.node != node]
    confirmed = [held.node for held in others if held.attached and not held.deleting]
    if confirmed:
        if node not in view.reported:
            yield ReportMultiAttach(node, tuple(_pods_on(view, confirmed)))
        yield Wait(WaitReason.ATTACHED_TO_OTHER_NODE, WaitData(node=node, nodes=tuple(confirmed)))
        return
    busy = [held for held in others if _may_change(view, held)]
    if busy:
        where = tuple(held.node for held in busy)
        left = view.answer - max(held.waiting_for for held in busy)
        yield Wait(WaitReason.ATTACHER_BUSY, WaitData(node=node, nodes=where), left)
    else:
        yield CreateAttachment(node)


def plan_missing_driver(view: AttachDetachView, node: str) -> Iterator[Step | CommonStep]:
    """The controller lacks the FlexVolume driver, so only the node may know whether it attaches."""
    place = view.nodes.get(node, NodeFacts())
    if place.in_use and not view.flex_loading:  # nodes list only volumes whose drivers attach
        yield ReportAttachFailure(node, view.flex_missing)
    yield Wait(
        WaitReason.FLEX_DRIVER_MISSING, WaitData(node=node, driver=view.driver), message=view.flex_missing
    )


def _is_overdue(view: AttachDetachView, held: ExistingAttachment) -> bool:
    return held.waiting_for >= view.answer - TIMER_TOLERANCE


def _may_change(view: AttachDetachView, held: ExistingAttachment) -> bool:
    """Whether the attacher is still expected to answer."""
    return not _is_overdue(view, held) and (held.deleting or not held.attach_error)


def plan_pending_attach(view: AttachDetachView, held: ExistingAttachment) -> Iterator[Step | CommonStep]:
    """The volume is wanted on the node and has an attachment there."""
    place = view.nodes.get(held.node, NodeFacts())
    if place.listed and (held.deleting or not held.attached):
        yield RemoveFromVolumesAttached(held.node)
    if held.deleting:
        if held.detach_error or _is_overdue(view, held):
            yield ReportAttachFailure(held.node, DELETING)
        yield _attacher_wait(view, held)
    elif held.attached:
        if not place.listed or place.device_path != held.device_path:
            yield AddToVolumesAttached(held.node, held.device_path)
    elif held.attach_error:
        yield ReportAttachFailure(held.node, held.attach_error)
        yield _attacher_wait(view, held)
    elif _is_overdue(view, held):
        message = FLEX_TIMED_OUT if view.is_flex else TIMED_OUT
        yield ReportAttachFailure(held.node, message.format(view.driver, view.handle))
    else:
        yield _attacher_wait(view, held, view.answer - held.waiting_for)


def _attacher_wait(view: AttachDetachView, held: ExistingAttachment, seconds: float = UNTIL_CHANGED) -> Wait:
    data = WaitData(node=held.node, driver=view.driver or "its driver")
    if held.deleting:
        reason = WaitReason.FLEX_DETACH if view.is_flex else WaitReason.DETACH
        return Wait(reason, data, seconds, message=held.detach_error)
    reason = WaitReason.FLEX_ATTACH if view.is_flex else WaitReason.ATTACH
    return Wait(reason, data, seconds, message=held.attach_error)


def _pods_on(view: AttachDetachView, nodes: Iterable[str]) -> Iterator[Pod]:
    for node in nodes:
        yield from view.wanted.get(node, ())


def conflict_message(title: str, pod: Pod, users: Sequence[Pod]) -> str:
    """The event for `pod` about the pods that use the volume on another node."""
    near = sorted(user.name for user in users if user.namespace == pod.namespace)
    far = sum(user.namespace != pod.namespace for user in users)
    if not users:
        what = EXCLUSIVE
    elif not near:
        what = f"Volume is already used by {far} pod(s) in different namespaces"
    else:
        what = f"Volume is already used by pod(s) {', '.join(near)}"
        what += f" and {far} pod(s) in different namespaces" if far else ""
    return f'Multi-Attach error for volume "{title}" {what}'


def failure_message(title: str, error: str) -> str:
    return f'AttachVolume.Attach failed for volume "{title}" : {error}'


def success_message(title: str) -> str:
    return f'AttachVolume.Attach succeeded for volume "{title}" '
