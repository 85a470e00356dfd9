"""A volume of a pod that has a node: attached, known to the node, staged, mounted.

How far the kubelet is with staging and mounting, no object shows; the kubelet itself tells it, in events and,
if it is one of ours, in its list of waits.
"""

from __future__ import annotations

from datetime import datetime

from volplane.api.core import Node, PersistentVolume, Pod
from volplane.api.storage import CSINode, VolumeAttachment
from volplane.controllers.attachdetach.controller import AttachDetach
from volplane.controllers.attachdetach.facts import unique_name
from volplane.controllers.binder.controller import Binder
from volplane.explain import attachments, claims
from volplane.explain.cluster_state import ClusterState, EventRecord, parse_time
from volplane.explain.result import Explanation, ExplanationStep, done_step, waiting_step
from volplane.node import plan as kubelet
from volplane.rules import access
from volplane.rules.binding import is_pair
from volplane.rules.pods import PodClaimUse, claim_uses
from volplane.rules.waits import Wait

FAILED = ("FailedMount", "FailedMapVolume", "FailedAttachVolume")


async def story(scene: ClusterState, pod: Pod, node: Node | None) -> Explanation:
    """All volumes of a pod whose containers have not started."""
    told = Explanation()
    if not await scene.cannot_read(Pod, Node, PersistentVolume, VolumeAttachment):
        for use in claim_uses(pod):
            told += await _explain_volume(scene, pod, use, node)
    if told.first_wait is None:
        told += await _explain_kubelet(scene, pod)
    return told


async def _explain_volume(scene: ClusterState, pod: Pod, use: PodClaimUse, node: Node | None) -> Explanation:
    binder = await scene.load_controller(Binder)
    claim = binder.claims.get(use.claim, pod.namespace)
    if claim is None:
        maker = "ephemeral volume controller" if use.ephemeral else "you"
        why = f"claim {pod.namespace}/{use.claim} does not exist"
        return Explanation(
            (
                waiting_step(
                    f"volume {use.volume}", maker, why, since=parse_time(pod.metadata.creation_timestamp)
                ),
            )
        )
    volume = claims.volume_of(claim, binder)
    if volume is None or not is_pair(claim, volume):
        return await claims.story(scene, claim)
    bound = Explanation((done_step(f"claim {claim.name} is bound to {volume.name}"),))
    controller = await scene.load_controller(AttachDetach)
    if not unique_name(volume) or not controller.is_attachable(volume):
        return bound + await _explain_mount(scene, pod, use, volume, node, attachable=False)
    attached = await attachments.explain_attach(scene, volume, pod.spec.node_name)
    if attached.first_wait is not None:
        return bound + attached
    return bound + attached + await _explain_mount(scene, pod, use, volume, node, attachable=True)


async def _explain_mount(
    scene: ClusterState,
    pod: Pod,
    use: PodClaimUse,
    volume: PersistentVolume,
    node: Node | None,
    *,
    attachable: bool,
) -> Explanation:
    """The kubelet's own plan for the volume, on what objects show of it."""
    where, who = pod.spec.node_name, f"kubelet of {pod.spec.node_name}"
    key = next(iter(unique_name(volume)), "")
    status = node.status if node is not None else None
    seen = kubelet.NodeVolumeView(
        name=key or volume.name,
        wanted=(pod.uid,),
        attachable=attachable,
        staged=bool(key),
        one_pod=volume.spec.access_modes == (access.ONCE_POD,),
        reported=status is not None and key in status.volumes_in_use,
        attached=status is not None and any(v.name == key for v in status.volumes_attached),
    )
    match next(iter(kubelet.plan(seen)), None):
        case kubelet.ReportInUse():
            why = (
                f"{where} does not list {volume.name} in volumesInUse yet: its kubelet has not begun with it"
            )
            return Explanation((waiting_step(f"mount {volume.name}", who, why, since=_since(pod)),))
        case Wait(_, why):
            return Explanation((waiting_step(f"mount {volume.name}", who, why, since=_since(pod)),))
    missing = await _describe_missing_driver(scene, volume, where)
    step = await _explain_mounting(scene, pod, use, volume, key)
    if missing is not None:
        return Explanation((missing,), (f"see the node pod of {attachments.driver_of(volume)} on {where}",))
    return Explanation((step,), tuple(_mount_advice(volume, where)))


def _since(pod: Pod) -> datetime | None:
    found = (c.last_transition_time for c in pod.status.conditions if c.type == "PodScheduled")
    return parse_time(next(found, "")) or parse_time(pod.metadata.creation_timestamp)


async def _describe_missing_driver(
    scene: ClusterState, volume: PersistentVolume, node: str
) -> ExplanationStep | None:
    driver = attachments.driver_of(volume)
    nodes = await scene.cache(CSINode)
    found = nodes.get(node)
    if (
        not driver
        or await scene.cannot_read(CSINode)
        or (found and any(d.name == driver for d in found.spec.drivers))
    ):
        return None
    why = f"driver {driver} is not registered on {node}: its node plugin does not run there, or not yet"
    return waiting_step(f"mount {volume.name}", "node-driver-registrar", why)


async def _explain_mounting(
    scene: ClusterState, pod: Pod, use: PodClaimUse, volume: PersistentVolume, key: str
) -> ExplanationStep:
    what = f"stage and mount {volume.name} (NodeStageVolume, NodePublishVolume)"
    who = f"kubelet of {pod.spec.node_name}"
    heard = [h for h in await scene.find_events(pod, *FAILED) if _is_about(h, use.volume, volume.name)]
    notes = scene.roles.of(f"node/{pod.spec.node_name}", key)
    if notes and notes[0].why:
        note = notes[0]
        return waiting_step(what, who, note.why, since=note.since, until=note.next_try, ends="tried again")
    if heard:
        newest = heard[0]
        details = [scene.describe_event(newest)]
        return waiting_step(what, who, newest.message, since=_since(pod), details=details)
    why = f"attached; the kubelet of {pod.spec.node_name} is at it, and has told no failure"
    return waiting_step(what, who, why, since=_since(pod))


def _is_about(heard: EventRecord, *names: str) -> bool:
    return any(f'"{name}"' in heard.message or f"[{name}" in heard.message for name in names)


def _mount_advice(volume: PersistentVolume, node: str) -> list[str]:
    driver = attachments.driver_of(volume)
    return [f"see the log of {driver}'s node plugin on {node}"] if driver else []


async def _explain_kubelet(scene: ClusterState, pod: Pod) -> Explanation:
    """Of volumes that are no claims, and of all that comes before the first container, only events tell."""
    heard = await scene.find_events(pod, *FAILED, "FailedCreatePodSandBox", "FailedCreatePodContainer")
    notes = scene.roles.of(f"node/{pod.spec.node_name}", f"pod/{pod.key}")
    who = f"kubelet of {pod.spec.node_name}"
    if heard:
        newest = heard[0]
        told = scene.describe_event(newest)
        step = waiting_step(
            "make ready for its containers", who, newest.message, since=_since(pod), details=(told,)
        )
        return Explanation((step,))
    if notes and notes[0].why:
        return Explanation(
            (waiting_step("make ready for its containers", who, notes[0].why, since=notes[0].since),)
        )
    return Explanation()
