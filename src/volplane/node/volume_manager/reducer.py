"""The reducer: the events that change a volume's state, and the only function that does.

Everything that happens to a volume on this node is one of these events. `reduce` is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, assert_never

from msgspec import Struct
from msgspec.structs import replace

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.node.volume_manager.expansion import (
    ExpansionOutcome,
    ExpansionTarget,
    claimed_size,
    find_expansion_target,
)
from volplane.node.volume_manager.plan import (
    ExpandInUseVolume,
    MountDevice,
    MountOutcome,
    MountState,
    MountVolume,
    RejectMount,
    UnmountDevice,
    UnmountVolume,
    after_mount,
    after_unmount,
)
from volplane.node.volume_manager.state import (
    NodeVolumeState,
    OperationFailure,
    PodMount,
    VolumeOperation,
    find_failure,
    operation_key,
    pods_overlap,
)
from volplane.volumes.base import PodVolumeRef, PodVolumeSpec, StagedVolumeRef

FIRST_BACKOFF = 0.5  # seconds; doubles with each failure in a row

K = TypeVar("K")
V = TypeVar("V")


# --- events


class PodAdded(Struct, frozen=True):
    """A pod needs the volume."""

    spec: PodVolumeSpec
    attachable: bool
    has_device: bool


class PodChanged(Struct, frozen=True):
    """The pod's labels, annotations or status have changed."""

    pod: Pod


class PodRemoved(Struct, frozen=True):
    """The pod's containers have ended: it needs the volume no longer."""

    uid: str


class RemountRequired(Struct, frozen=True):
    """What the pod has mounted must be published again."""

    uid: str


class ClaimRead(Struct, frozen=True):
    """The pod's claim and its volume were read again."""

    uid: str
    claim: PersistentVolumeClaim
    volume: PersistentVolume


class AttachmentVerified(Struct, frozen=True):
    """A live read of the Node shows the volume in volumesAttached."""


class AttachmentLost(Struct, frozen=True):
    """The volume has left volumesAttached."""


class AttachabilityRead(Struct, frozen=True):
    """The CSIDriver objects are known, and whether its driver attaches volumes."""

    attachable: bool


class MountStarted(Struct, frozen=True):
    """A mount for the pod is about to be tried: until it has ended, the pod counts as having one."""

    spec: PodVolumeSpec


class OperationEnded(Struct, frozen=True):
    """A call to the plugin has ended, or could not be made."""

    step: VolumeOperation
    outcome: MountOutcome
    spec: PodVolumeSpec | None = None  # of a mount; the pod may be gone by now
    error: str = ""
    now: float = 0.0
    max_backoff: float = 0.0


class ExpansionEnded(Struct, frozen=True):
    target: ExpansionTarget
    outcome: ExpansionOutcome
    uid: str
    claim: PersistentVolumeClaim | None = None  # as this node has written it


class BackoffCleared(Struct, frozen=True):
    """What the volume's operations failed for may be over."""


class MountFound(Struct, frozen=True):
    """After a restart: the pod's directory says that it may be mounted."""

    ref: PodVolumeRef
    attachable: bool


class DeviceFound(Struct, frozen=True):
    """After a restart: the metadata of a device says that it may be mounted."""

    ref: StagedVolumeRef
    attachable: bool


class VolumeForgotten(Struct, frozen=True):
    """Nothing of it is mounted or needed."""


VolumeEvent = (
    PodAdded
    | PodChanged
    | PodRemoved
    | RemountRequired
    | ClaimRead
    | AttachmentVerified
    | AttachmentLost
    | AttachabilityRead
    | MountStarted
    | OperationEnded
    | ExpansionEnded
    | BackoffCleared
    | MountFound
    | DeviceFound
    | VolumeForgotten
)


# --- the reducer


def reduce(state: NodeVolumeState | None, event: VolumeEvent) -> NodeVolumeState | None:
    """The state after an event. None before the first and after the last one; `state` if nothing changes."""
    match event:
        case PodAdded(spec):
            known = state or NodeVolumeState(spec.unique_name, spec.plugin)
            return _add_pod(known, event)
        case MountFound(ref) | DeviceFound(ref):
            # Attachable until its pod says more: one volume too many in volumesInUse delays a detach, one
            # too few loses data.
            known = state or NodeVolumeState(
                ref.unique_name, ref.plugin, attachable=event.attachable, has_device=event.attachable
            )
            return _add_found(known, event)
    return _change(state, event) if state is not None else None


def _change(state: NodeVolumeState, event: VolumeEvent) -> NodeVolumeState | None:
    desired, actual = state.desired, state.actual
    match event:
        case PodChanged(pod):
            if pod.uid not in desired.pods:
                return state
            specs = _with(desired.pods, pod.uid, replace(desired.pods[pod.uid], pod=pod))
            return replace(state, desired=replace(desired, pods=specs))
        case PodRemoved(uid):
            if uid not in desired.pods:
                return state
            rest = desired.remount_pods - {uid}
            return replace(
                state, desired=replace(desired, pods=_without(desired.pods, uid), remount_pods=rest)
            )
        case RemountRequired(uid):
            if uid not in desired.pods or not state.is_mounted(uid):
                return state
            return replace(state, desired=replace(desired, remount_pods=desired.remount_pods | {uid}))
        case ClaimRead(uid, claim, volume):
            return _read_claim(state, uid, claim, volume)
        case AttachmentVerified():
            return replace(state, actual=replace(actual, attachment_verified=True))
        case AttachmentLost():
            lost = actual.attachment_verified
            return replace(state, actual=replace(actual, attachment_verified=False)) if lost else state
        case AttachabilityRead(attachable):
            return replace(state, attachable=attachable) if attachable != state.attachable else state
        case MountStarted(spec):
            if spec.pod.uid in actual.mounts:
                return state
            mounts = _with(actual.mounts, spec.pod.uid, PodMount(spec.ref))
            return replace(state, actual=replace(actual, mounts=mounts))
        case OperationEnded():
            return _note_failure(_end_operation(state, event), event)
        case ExpansionEnded():
            return _end_expansion(state, event)
        case BackoffCleared():
            return replace(state, failures={}) if state.failures else state
        case VolumeForgotten():
            return None
        case PodAdded() | MountFound() | DeviceFound():
            raise AssertionError(event)
    assert_never(event)


def _add_pod(state: NodeVolumeState, event: PodAdded) -> NodeVolumeState:
    spec = event.spec
    desired = replace(state.desired, pods=_with(state.desired.pods, spec.pod.uid, spec))
    state = replace(
        state, name=spec.name, attachable=event.attachable, has_device=event.has_device, desired=desired
    )
    return _find_expansion(state)


def _read_claim(
    state: NodeVolumeState, uid: str, claim: PersistentVolumeClaim, volume: PersistentVolume | None
) -> NodeVolumeState:
    spec = state.desired.pods.get(uid)
    # A read may be overtaken by a later one, or by a write of our own.
    if spec is None or (spec.claim is not None and spec.claim.revision >= claim.revision):
        return state
    spec = replace(spec, claim=claim, volume=volume or spec.volume)
    desired = replace(state.desired, pods=_with(state.desired.pods, uid, spec))
    return _find_expansion(replace(state, desired=desired))


def _find_expansion(state: NodeVolumeState) -> NodeVolumeState:
    """Decide by the newest claim that was read for any pod: an older one may not show the expansion."""
    claims = [spec for spec in state.desired.pods.values() if spec.claim is not None]
    newest = max(claims, key=lambda spec: spec.claim.revision if spec.claim else 0, default=None)
    if newest is None:
        return state
    actual = state.actual
    target = find_expansion_target(newest.claim, newest.volume, actual.size)
    desired = replace(state.desired, expansion=None if actual.refuses_expansion_in_use else target)
    size = actual.size or claimed_size(newest.claim)
    return replace(state, desired=desired, actual=replace(actual, size=size))


def _end_expansion(state: NodeVolumeState, event: ExpansionEnded) -> NodeVolumeState:
    desired, actual = state.desired, state.actual
    if event.outcome is ExpansionOutcome.EXPANDED:
        actual = replace(actual, size=event.target.bytes)
    elif event.outcome is ExpansionOutcome.REFUSED_IN_USE:
        actual = replace(actual, refuses_expansion_in_use=True)
    keeps = event.outcome in (ExpansionOutcome.READ_ONLY, ExpansionOutcome.FAILED)
    if not keeps and desired.expansion == event.target:
        desired = replace(desired, expansion=None)
    state = replace(state, desired=desired, actual=actual)
    return _read_claim(state, event.uid, event.claim, None) if event.claim is not None else state


def _add_found(state: NodeVolumeState, event: MountFound | DeviceFound) -> NodeVolumeState:
    actual = replace(state.actual, selinux_label=event.ref.selinux_label)
    if isinstance(event, MountFound):
        found = PodMount(event.ref, MountState.UNCERTAIN, reconstructed=True)
        actual = replace(actual, mounts=_with(actual.mounts, event.ref.pod, found))
    has_device = state.has_device or isinstance(event, DeviceFound)
    if has_device:  # even without metadata: it may be damaged, or of a driver that does not stage
        actual = replace(actual, device=MountState.UNCERTAIN, device_reconstructed=True)
    return replace(state, name=event.ref.name or state.name, has_device=has_device, actual=actual)


def _end_operation(state: NodeVolumeState, event: OperationEnded) -> NodeVolumeState:
    match event.step:
        case MountDevice():
            return _end_mount_device(state, event)
        case MountVolume(uid):
            return _end_mount(state, uid, event)
        case UnmountVolume(uid):
            return _end_unmount(state, uid, event)
        case UnmountDevice():
            device = after_unmount(state.actual.device, event.outcome)
            return replace(state, actual=replace(state.actual, device=device))
        case RejectMount() | ExpandInUseVolume():
            return state
    assert_never(event.step)


def _end_mount_device(state: NodeVolumeState, event: OperationEnded) -> NodeVolumeState:
    before = state.actual
    done = event.outcome is MountOutcome.DONE
    # After a lost answer the device may be mounted with its new size: unmounting it again would not help.
    tried = done or event.outcome is MountOutcome.UNCERTAIN
    actual = replace(
        before,
        device=after_mount(before.device, event.outcome, reconstructed=before.device_reconstructed),
        device_reconstructed=before.device_reconstructed and not done,
        device_expansion=state.desired.expansion if tried else before.device_expansion,
        selinux_label=event.spec.selinux_label if event.spec is not None else before.selinux_label,
    )
    return replace(state, actual=actual)


def _end_mount(state: NodeVolumeState, uid: str, event: OperationEnded) -> NodeVolumeState:
    assert event.spec is not None
    before = state.actual.mounts.get(uid, PodMount(event.spec.ref))
    after = after_mount(before.state, event.outcome, reconstructed=before.reconstructed)
    if after is MountState.ABSENT:
        mounts = _without(state.actual.mounts, uid)
    elif event.outcome is MountOutcome.DONE:
        mounts = _with(state.actual.mounts, uid, PodMount(event.spec.ref, after))
    else:
        mounts = _with(state.actual.mounts, uid, replace(before, state=after))
    return replace(
        state,
        desired=replace(state.desired, remount_pods=state.desired.remount_pods - {uid}),
        actual=replace(state.actual, mounts=mounts, selinux_label=event.spec.selinux_label),
    )


def _end_unmount(state: NodeVolumeState, uid: str, event: OperationEnded) -> NodeVolumeState:
    before = state.actual.mounts[uid]
    after = after_unmount(before.state, event.outcome)
    if after is MountState.ABSENT:
        mounts = _without(state.actual.mounts, uid)
    else:
        mounts = _with(state.actual.mounts, uid, replace(before, state=after))
    return replace(state, actual=replace(state.actual, mounts=mounts))


# --- backoff


def _note_failure(state: NodeVolumeState, event: OperationEnded) -> NodeVolumeState:
    """A failure delays only its own kind of operation: an unmount does not wait for a mount's backoff.

    Nor does a failure of another kind end the backoff, or a mount and an unmount that both fail would repeat
    each other without a pause. A success ends it.
    """
    operation, pod = operation_key(state, event.step)
    if not event.error:
        kept = {key: failure for key, failure in state.failures.items() if not pods_overlap(key[1], pod)}
        return replace(state, failures=kept) if len(kept) != len(state.failures) else state
    before = find_failure(state, operation, pod)
    delay = min(before.delay * 2 if before else FIRST_BACKOFF, event.max_backoff)
    failure = OperationFailure(event.error, delay, event.now + delay)
    state = replace(state, failures=_with(state.failures, (operation, pod), failure))
    return _serve_last(state, event.step.pod) if isinstance(event.step, MountDevice | MountVolume) else state


def _serve_last(state: NodeVolumeState, uid: str) -> NodeVolumeState:
    """The pod's mount failed; others that need the volume are served before it is tried again."""
    spec = state.desired.pods.get(uid)
    if spec is None or len(state.desired.pods) == 1:
        return state
    return replace(
        state, desired=replace(state.desired, pods={**_without(state.desired.pods, uid), uid: spec})
    )


def _with(mapping: Mapping[K, V], key: K, value: V) -> Mapping[K, V]:
    return {**mapping, key: value}


def _without(mapping: Mapping[K, V], key: K) -> Mapping[K, V]:
    return {each: value for each, value in mapping.items() if each != key}
