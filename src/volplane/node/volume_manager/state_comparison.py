"""What the pods of this node need beside what is mounted, and the step between the two.

One entry for each pod that needs a volume or has it mounted, and one for a device that no pod uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never

from volplane.loops.queue import WaitingKey
from volplane.loops.volume_states import ComparedVolume, PendingStep, pending_step, pending_wait
from volplane.node.volume_manager.plan import (
    AttachVolume,
    DetachVolume,
    ExpandInUseVolume,
    ForgetNodeVolume,
    MountDevice,
    MountState,
    MountVolume,
    NodeVolumeView,
    RejectMount,
    UnmountDevice,
    UnmountVolume,
    VolumeStep,
)
from volplane.node.volume_manager.state import NodeVolumeState
from volplane.rules.plugin_names import NOT_AVAILABLE, plugin_of_source, plugin_of_unique_name
from volplane.rules.waits import Wait

DESIRED = "mounted"
ALL_PODS = ""
TEXTS: Mapping[MountState, str] = {MountState.MOUNTED: "mounted", MountState.UNCERTAIN: "mount uncertain"}


def compare(
    node: str,
    state: NodeVolumeState,
    view: NodeVolumeView,
    steps: Iterable[VolumeStep | Wait],
    waits: Sequence[WaitingKey[str]] = (),
) -> Iterator[ComparedVolume]:
    pending = _find_pending(steps, waits)
    plugin = find_plugin(state)
    for uid in {**state.desired.pods, **state.actual.mounts} or (ALL_PODS,):
        yield ComparedVolume(
            state.unique_name,
            _find_name(state),
            plugin,
            node,
            (_find_pod(state, uid),) if uid else (),
            DESIRED if uid in state.desired.pods else "",
            _describe_actual(view, uid),
            _choose_pending(view, uid, pending),
        )


def compare_unresolved(node: str, pod: str, problems: Iterable[tuple[str, str]]) -> Iterator[ComparedVolume]:
    """The volumes of a pod that are not known yet, such as those of claims that are not bound."""
    for name, why in problems:
        yield ComparedVolume("", name, NOT_AVAILABLE, node, (pod,), DESIRED, "", PendingStep(why))


def find_plugin(state: NodeVolumeState) -> str:
    """The plugin with the name of the CSI driver."""
    for spec in state.desired.pods.values():
        return plugin_of_source(state.plugin, spec.source, spec.volume)
    return plugin_of_unique_name(state.plugin, state.unique_name)


def _find_name(state: NodeVolumeState) -> str:
    specs = (spec.name for spec in state.desired.pods.values())
    refs = (mount.ref.name for mount in state.actual.mounts.values())
    return state.name or next(specs, "") or next(refs, "") or state.unique_name


def _find_pod(state: NodeVolumeState, uid: str) -> str:
    if spec := state.desired.pods.get(uid):
        return spec.pod.key
    return state.actual.mounts[uid].ref.owner.removeprefix("pod/") or uid


def _describe_actual(view: NodeVolumeView, uid: str) -> str:
    """The furthest state that the volume has reached for the pod."""
    if text := TEXTS.get(view.mounts.get(uid, MountState.ABSENT)):
        return text
    if text := TEXTS.get(view.device):
        return f"device {text}"
    return "attached" if view.attachable and view.attached else ""


def _find_pending(
    steps: Iterable[VolumeStep | Wait], waits: Sequence[WaitingKey[str]]
) -> dict[str, PendingStep]:
    """The first step for each pod; ALL_PODS: for the volume as a whole."""
    found: dict[str, PendingStep] = {}
    for step in steps:
        match step:
            case Wait():
                for pod in step.data.pods or (ALL_PODS,):
                    found.setdefault(pod, pending_wait(step, waits))
            case AttachVolume():
                found.setdefault(ALL_PODS, pending_step("attach it to this node", waits))
            case DetachVolume():
                found.setdefault(ALL_PODS, pending_step("detach it from this node", waits))
            case MountDevice():
                found.setdefault(ALL_PODS, pending_step("mount the device", waits))
            case MountVolume(pod):
                found.setdefault(pod, pending_step("mount it for the pod", waits))
            case RejectMount(pod, why):
                found.setdefault(pod, pending_step(why, waits))
            case ExpandInUseVolume(pod):
                found.setdefault(pod, pending_step("expand the file system", waits))
            case UnmountVolume(pod):
                found.setdefault(pod, pending_step("unmount it for the pod", waits))
            case UnmountDevice():
                found.setdefault(ALL_PODS, pending_step("unmount the device", waits))
            case ForgetNodeVolume():
                found.setdefault(ALL_PODS, pending_step("remove it from volumesInUse", waits))
            case _:
                assert_never(step)
    return found


def _choose_pending(view: NodeVolumeView, uid: str, pending: Mapping[str, PendingStep]) -> PendingStep | None:
    """A step for the whole volume comes first, for the pods that do not have it as they need it."""
    waiting = {pod for pod in {*view.desired_pods, *view.mounts} if not _is_satisfied(view, pod)}
    whole = pending.get(ALL_PODS) if uid in waiting or not waiting else None
    return whole or pending.get(uid)


def _is_satisfied(view: NodeVolumeView, pod: str) -> bool:
    return pod in view.desired_pods and view.mounts.get(pod) is MountState.MOUNTED
