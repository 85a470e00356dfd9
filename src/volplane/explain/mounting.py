"""A volume of a pod that has a node: attached, listed in volumesAttached, staged, mounted.

No object shows how far the kubelet is with staging and mounting. Its events show it, and its wait reports
if it is a kubelet of Volplane.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

from volplane.api.core import Node, PersistentVolume, Pod
from volplane.api.storage import CSINode, VolumeAttachment
from volplane.controllers.attachdetach.controller import AttachDetach
from volplane.controllers.attachdetach.facts import inline_flex_volumes, unique_name
from volplane.controllers.binder.controller import Binder
from volplane.explain import attachments, claims, flexvolumes
from volplane.explain.cluster_state import ClusterState, EventRecord, parse_time
from volplane.explain.result import Explanation, ExplanationStep, done_step, waiting_step
from volplane.node.volume_manager import plan as kubelet
from volplane.rules import access
from volplane.rules.binding import is_pair
from volplane.rules.csi_translation import UntranslatableObject, translate_inline_volume
from volplane.rules.pods import PodClaimUse, claim_uses
from volplane.rules.waits import Wait, WaitReason
from volplane.volumes.flex.options import FlexVolume

FAILED = ("FailedMount", "FailedMapVolume", "FailedAttachVolume")


async def explain(state: ClusterState, pod: Pod, node: Node | None) -> Explanation:
    """All volumes of a pod whose containers have not started."""
    explanation = Explanation()
    if not await state.cannot_read(Pod, Node, PersistentVolume, VolumeAttachment):
        for use in claim_uses(pod):
            explanation += await _explain_volume(state, pod, use, node)
        for source, volume in _inline_volumes(pod):
            explanation += await _explain_attach_and_mount(state, pod, source, volume, node)
        for flex in inline_flex_volumes(pod):
            explanation += await _explain_inline_attach(state, flex, node)
    if explanation.first_wait is None:
        explanation += await _explain_kubelet(state, pod)
    return explanation


async def _explain_volume(state: ClusterState, pod: Pod, use: PodClaimUse, node: Node | None) -> Explanation:
    binder = await state.load_controller(Binder)
    claim = binder.claims.get(use.claim, pod.namespace)
    if claim is None:
        return Explanation((explain_missing_claim(pod, use),))
    volume = claims.volume_of(claim, binder)
    if volume is None or not is_pair(claim, volume):
        return await claims.explain(state, claim)
    bound = Explanation((done_step(f"claim {claim.name} is bound to {volume.name}"),))
    return bound + await _explain_attach_and_mount(state, pod, use.volume, volume, node)


def _inline_volumes(pod: Pod) -> Iterator[tuple[str, PersistentVolume]]:
    """The in-tree volumes of the pod that a CSI driver serves, by their names in the pod."""
    for source in pod.spec.volumes:
        with suppress(UntranslatableObject):  # its event shows why
            volume = translate_inline_volume(source)
            if volume is not None:
                yield source.name, volume


async def _explain_attach_and_mount(
    state: ClusterState, pod: Pod, source: str, volume: PersistentVolume, node: Node | None
) -> Explanation:
    """`source` is the name of the volume in the pod."""
    controller = await state.load_controller(AttachDetach)
    key = next(iter(unique_name(volume)), "")
    if not key or not _needs_attach(state, controller, volume, key, node):
        return await _explain_mount(state, pod, source, volume, node, attachable=False)
    attached = await attachments.explain_attach(state, key, pod.spec.node_name)
    if attached.first_wait is not None:
        return attached
    return attached + await _explain_mount(state, pod, source, volume, node, attachable=True)


def _needs_attach(
    state: ClusterState, controller: AttachDetach, volume: PersistentVolume, key: str, node: Node | None
) -> bool:
    if volume.spec.flex_volume is not None:
        return flexvolumes.needs_attach(state, controller, key, node)
    return controller.is_attachable(volume)


async def _explain_inline_attach(state: ClusterState, flex: FlexVolume, node: Node | None) -> Explanation:
    """An inline FlexVolume, as far as something shows that it has to be attached."""
    controller = await state.load_controller(AttachDetach)
    if node is None or not flexvolumes.needs_attach(state, controller, flex.unique_name, node):
        return Explanation()
    return await attachments.explain_attach(state, flex.unique_name, node.name)


def explain_missing_claim(pod: Pod, use: PodClaimUse) -> ExplanationStep:
    creator = "ephemeral volume controller" if use.ephemeral else "you"
    since = parse_time(pod.metadata.creation_timestamp)
    why = f"claim {pod.namespace}/{use.claim} does not exist"
    return waiting_step(f"volume {use.volume}", creator, why, since=since)


async def _explain_mount(
    state: ClusterState,
    pod: Pod,
    source: str,
    volume: PersistentVolume,
    node: Node | None,
    *,
    attachable: bool,
) -> Explanation:
    """The kubelet's own plan for the volume, on what the objects show."""
    name, who = pod.spec.node_name, f"kubelet of {pod.spec.node_name}"
    key = next(iter(unique_name(volume)), "")
    if volume.spec.flex_volume is not None and not attachable:
        key = f"{volume.spec.flex_volume.driver}/{pod.uid}-{volume.name}"  # each pod has one of its own
    status = node.status if node is not None else None
    view = kubelet.NodeVolumeView(
        name=key or volume.name,
        desired_pods=(pod.uid,),
        attachable=attachable,
        has_device=attachable if volume.spec.flex_volume is not None else bool(key),
        single_pod=volume.spec.access_modes == (access.ONCE_POD,),
        reported_in_use=status is not None and key in status.volumes_in_use,
        attached=status is not None and any(v.name == key for v in status.volumes_attached),
    )
    match next(iter(kubelet.plan(view)), None):
        case Wait(WaitReason.VOLUMES_IN_USE):
            why = (
                f"{name} does not list {volume.name} in volumesInUse yet: its kubelet has not started with it"
            )
            return Explanation((waiting_step(f"mount {volume.name}", who, why, since=_since(pod)),))
        case Wait() as wait:
            return Explanation((waiting_step(f"mount {volume.name}", who, wait, since=_since(pod)),))
    missing = await _describe_missing_driver(state, volume, name)
    if missing is not None:
        driver = attachments.driver_of(volume)
        return Explanation((missing,), (f"check the node plugin pod of {driver} on {name}",))
    step = await _explain_mounting(state, pod, source, volume, key)
    return Explanation((step,), tuple(_mount_advice(volume, name)))


def _since(pod: Pod) -> datetime | None:
    found = (c.last_transition_time for c in pod.status.conditions if c.type == "PodScheduled")
    return parse_time(next(found, "")) or parse_time(pod.metadata.creation_timestamp)


async def _describe_missing_driver(
    state: ClusterState, volume: PersistentVolume, node: str
) -> ExplanationStep | None:
    driver = attachments.driver_of(volume)
    found = (await state.cache(CSINode)).get(node)
    registered = found is not None and any(d.name == driver for d in found.spec.drivers)
    if not driver or registered or await state.cannot_read(CSINode):
        return None
    why = f"driver {driver} is not registered on {node}: its node plugin is not running there yet"
    return waiting_step(f"mount {volume.name}", "node-driver-registrar", why)


async def _explain_mounting(
    state: ClusterState, pod: Pod, source: str, volume: PersistentVolume, key: str
) -> ExplanationStep:
    calls = (
        "mountdevice, mount" if volume.spec.flex_volume is not None else "NodeStageVolume, NodePublishVolume"
    )
    what = f"stage and mount {volume.name} ({calls})"
    who = f"kubelet of {pod.spec.node_name}"
    reports = [r for r in state.roles.find(f"node/{pod.spec.node_name}", key) if r.why]
    if reports:
        report = reports[0]
        return waiting_step(what, who, report.why, since=report.since, until=report.next_try, ends="retried")
    events = [e for e in await state.find_events(pod, *FAILED) if _is_about(e, source, volume.name)]
    if events:
        details = [state.describe_event(events[0])]
        return waiting_step(what, who, events[0].message, since=_since(pod), details=details)
    why = f"the kubelet of {pod.spec.node_name} is mounting it; no error reported"
    return waiting_step(what, who, why, since=_since(pod))


def _is_about(event: EventRecord, *names: str) -> bool:
    """Kubelets name the volume only in the event's message."""
    return any(f'"{name}"' in event.message or f"[{name}" in event.message for name in names)


def _mount_advice(volume: PersistentVolume, node: str) -> list[str]:
    driver = attachments.driver_of(volume)
    return [f"check the log of the node plugin of {driver} on {node}"] if driver else []


async def _explain_kubelet(state: ClusterState, pod: Pod) -> Explanation:
    """Volumes without a claim, and everything else before the first container: only events show them."""
    events = await state.find_events(pod, *FAILED, "FailedCreatePodSandBox", "FailedCreatePodContainer")
    reports = state.roles.find(f"node/{pod.spec.node_name}", f"pod/{pod.key}")
    what, who = "prepare the containers", f"kubelet of {pod.spec.node_name}"
    if events:
        details = (state.describe_event(events[0]),)
        return Explanation((waiting_step(what, who, events[0].message, since=_since(pod), details=details),))
    if reports and reports[0].why:
        return Explanation((waiting_step(what, who, reports[0].why, since=reports[0].since),))
    return Explanation()
