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
    find_expansion_target,
)
from volplane.node.volume_manager.plan import (
    AttachState,
    AttachVolume,
    DetachVolume,
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
from volplane.rules import sizes
from volplane.volumes.base import PodVolumeRef, PodVolumeSpec, StagedVolumeRef

FIRST_BACKOFF = 0.5  # seconds; doubles with each failure in a row

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R", PersistentVolume, PersistentVolumeClaim)


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
    """The pod's mount must be published again."""

    uid: str


class ClaimRead(Struct, frozen=True):
    """The pod's claim and its volume were read again."""

    uid: str
    claim: PersistentVolumeClaim
    volume: PersistentVolume


class AttachmentVerified(Struct, frozen=True):
    """A live read of the Node shows the volume in volumesAttached."""

    device_path: str = ""


class AttachmentLost(Struct, frozen=True):
    """The volume has left volumesAttached."""


class VolumeAttached(Struct, frozen=True):
    """The kubelet has attached the volume itself."""

    device_path: str


class AttachabilityRead(Struct, frozen=True):
    """The CSIDriver objects were read: they say whether the volume's driver attaches volumes."""

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
    """An attempt to expand the volume has ended."""

    target: ExpansionTarget
    outcome: ExpansionOutcome
    uid: str
    claim: PersistentVolumeClaim | None = None  # as this node has written it


class BackoffCleared(Struct, frozen=True):
    """The cause of earlier failures may be gone: failed operations may be retried at once."""


class MountFound(Struct, frozen=True):
    """After a restart: the pod's directory says that it may be mounted."""

    ref: PodVolumeRef
    attachable: bool


class DeviceFound(Struct, frozen=True):
    """After a restart: the metadata of a device says that it may be mounted."""

    ref: StagedVolumeRef
    attachable: bool


class AttachmentFound(Struct, frozen=True):
    """After a restart: a record says that the kubelet has attached the volume, or was about to."""

    ref: StagedVolumeRef
    attachable: bool = True


class VolumeForgotten(Struct, frozen=True):
    """Nothing of the volume is mounted, and no pod needs it."""


VolumeEvent = (
    PodAdded
    | PodChanged
    | PodRemoved
    | RemountRequired
    | ClaimRead
    | AttachmentVerified
    | AttachmentLost
    | VolumeAttached
    | AttachabilityRead
    | MountStarted
    | OperationEnded
    | ExpansionEnded
    | BackoffCleared
    | MountFound
    | DeviceFound
    | AttachmentFound
    | VolumeForgotten
)


# --- the reducer


def reduce(state: NodeVolumeState | None, event: VolumeEvent) -> NodeVolumeState | None:
    """The state after an event. None before the first and after the last one; `state` if nothing changes."""
    match event:
        case PodAdded(spec):
            known = state or NodeVolumeState(spec.unique_name, spec.plugin)
            return _add_pod(known, event)
        case MountFound(ref) | DeviceFound(ref) | AttachmentFound(ref):
            # `attachable` is a guess until a pod needs the volume. If in doubt it is True: a volume too many
            # in volumesInUse delays a detach, one too few loses data.
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
            # Also while it is being mounted: that mount may have read what it shows before the change.
            if uid not in desired.pods or uid not in actual.mounts:
                return state
            return _require_remount(state, uid)
        case ClaimRead(uid, claim, volume):
            return _read_claim(state, uid, claim, volume)
        case AttachmentVerified():
            verified = replace(actual, attachment_verified=True, device_path=event.device_path)
            return replace(state, actual=verified)
        case AttachmentLost():
            if not actual.attachment_verified:
                return state
            return replace(state, actual=replace(actual, attachment_verified=False, device_path=""))
        case VolumeAttached(device):
            attached = replace(actual, attachment=AttachState.ATTACHED, device_path=device)
            return replace(state, actual=attached)
        case AttachabilityRead(attachable):
            return replace(state, attachable=attachable) if attachable != state.attachable else state
        case MountStarted(spec):
            return _start_mount(state, spec)
        case OperationEnded():
            return _update_backoff(_end_operation(state, event), event)
        case ExpansionEnded():
            return _end_expansion(state, event)
        case BackoffCleared():
            return replace(state, failures={}) if state.failures else state
        case VolumeForgotten():
            return None
        case PodAdded() | MountFound() | DeviceFound() | AttachmentFound():
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
    if spec is None:
        return state
    # A read may be overtaken by a later one, or by a write of our own.
    newest = replace(spec, claim=_newer(spec.claim, claim), volume=_newer(spec.volume, volume))
    if newest.claim is spec.claim and newest.volume is spec.volume:
        return state
    spec = newest
    desired = replace(state.desired, pods=_with(state.desired.pods, uid, spec))
    return _find_expansion(replace(state, desired=desired))


def _newer(known: R | None, read: R | None) -> R | None:
    return read if read is not None and (known is None or read.revision > known.revision) else known


def _revisions(spec: PodVolumeSpec) -> tuple[int, int]:
    return spec.claim.revision if spec.claim else 0, spec.volume.revision if spec.volume else 0


def _find_expansion(state: NodeVolumeState) -> NodeVolumeState:
    """Decide by the newest claim that was read for any pod: an older one may not show the expansion."""
    claims = [spec for spec in state.desired.pods.values() if spec.claim is not None]
    newest = max(claims, key=_revisions, default=None)
    if newest is None:
        return state
    actual = state.actual
    target = find_expansion_target(newest.claim, newest.volume, actual.size)
    desired = replace(state.desired, expansion=None if actual.refuses_expansion_in_use else target)
    size = actual.size or sizes.claimed_size(newest.claim)
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


def _add_found(state: NodeVolumeState, event: MountFound | DeviceFound | AttachmentFound) -> NodeVolumeState:
    if isinstance(event, AttachmentFound):
        # The devices were found before: without a directory of its own there is none to unmount.
        return replace(state, actual=replace(state.actual, attachment=AttachState.UNCERTAIN))
    actual = replace(state.actual, selinux_label=event.ref.selinux_label)
    if isinstance(event, MountFound):
        found = PodMount(event.ref, MountState.UNCERTAIN, reconstructed=True)
        actual = replace(actual, mounts=_with(actual.mounts, event.ref.pod, found))
    has_device = state.has_device or isinstance(event, DeviceFound)
    if has_device:
        # Also if only a pod's mount was found: the device's own metadata may be missing or damaged.
        actual = replace(actual, device=MountState.UNCERTAIN, device_reconstructed=True)
    return replace(state, name=event.ref.name or state.name, has_device=has_device, actual=actual)


def _end_operation(state: NodeVolumeState, event: OperationEnded) -> NodeVolumeState:
    match event.step:
        case AttachVolume() | DetachVolume():
            return _end_attach_or_detach(state, event)
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


def _end_attach_or_detach(state: NodeVolumeState, event: OperationEnded) -> NodeVolumeState:
    """An attach that has succeeded is `VolumeAttached`. After any error of the driver nothing is known."""
    actual = state.actual
    match event.outcome:
        case MountOutcome.DONE if isinstance(event.step, DetachVolume):
            return replace(state, actual=replace(actual, attachment=AttachState.DETACHED, device_path=""))
        case MountOutcome.FINAL | MountOutcome.UNCERTAIN:
            return replace(state, actual=replace(actual, attachment=AttachState.UNCERTAIN))
    return state


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


def _require_remount(state: NodeVolumeState, uid: str) -> NodeVolumeState:
    return replace(state, desired=replace(state.desired, remount_pods=state.desired.remount_pods | {uid}))


def _start_mount(state: NodeVolumeState, spec: PodVolumeSpec) -> NodeVolumeState:
    uid, desired, actual = spec.pod.uid, state.desired, state.actual
    # What requires another mount from now on is not shown by this one; nor is a pod that has changed since.
    if uid in desired.pods and desired.pods[uid].pod is spec.pod:
        desired = replace(desired, remount_pods=desired.remount_pods - {uid})
    if uid not in actual.mounts:
        actual = replace(actual, mounts=_with(actual.mounts, uid, PodMount(spec.ref)))
    return replace(state, desired=desired, actual=actual)


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
    state = replace(
        state, actual=replace(state.actual, mounts=mounts, selinux_label=event.spec.selinux_label)
    )
    failed = event.outcome is not MountOutcome.DONE
    return _require_remount(state, uid) if failed and after is MountState.MOUNTED else state


def _end_unmount(state: NodeVolumeState, uid: str, event: OperationEnded) -> NodeVolumeState:
    before = state.actual.mounts[uid]
    after = after_unmount(before.state, event.outcome)
    if after is MountState.ABSENT:
        mounts = _without(state.actual.mounts, uid)
    else:
        mounts = _with(state.actual.mounts, uid, replace(before, state=after))
    return replace(state, actual=replace(state.actual, mounts=mounts))


# --- backoff


def _update_backoff(state: NodeVolumeState, event: OperationEnded) -> NodeVolumeState:
    """Start a backoff after a failure; end all backoffs of the pod after a success.

    A failure delays only its own kind of operation: an unmount does not wait for a mount's backoff. Nor does
    it end the backoff of another kind: a mount and an unmount that both fail would alternate without a pause.
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
    """Move a pod whose mount failed to the end: other pods that need the volume come first."""
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
