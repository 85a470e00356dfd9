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
from volplane.explain.answer import Step, Story, done, waits
from volplane.explain.scene import Heard, Scene, moment
from volplane.node import plan as kubelet
from volplane.rules import access
from volplane.rules.binding import is_pair
from volplane.rules.pods import Use, uses
from volplane.rules.steps import Wait

FAILED = ("FailedMount", "FailedMapVolume", "FailedAttachVolume")


async def story(scene: Scene, pod: Pod, node: Node | None) -> Story:
    """All volumes of a pod whose containers have not started."""
    told = Story()
    if not await scene.lacks(Pod, Node, PersistentVolume, VolumeAttachment):
        for use in uses(pod):
            told += await _volume(scene, pod, use, node)
    if told.waits is None:
        told += await _kubelet(scene, pod)
    return told


async def _volume(scene: Scene, pod: Pod, use: Use, node: Node | None) -> Story:
    binder = await scene.seen_by(Binder)
    claim = binder.claims.get(use.claim, pod.namespace)
    if claim is None:
        maker = "ephemeral volume controller" if use.ephemeral else "you"
        why = f"claim {pod.namespace}/{use.claim} does not exist"
        return Story(
            (waits(f"volume {use.volume}", maker, why, since=moment(pod.metadata.creation_timestamp)),)
        )
    volume = claims.volume_of(claim, binder)
    if volume is None or not is_pair(claim, volume):
        return await claims.story(scene, claim)
    bound = Story((done(f"claim {claim.name} is bound to {volume.name}"),))
    controller = await scene.seen_by(AttachDetach)
    if not unique_name(volume) or not controller.is_attachable(volume):
        return bound + await _mount(scene, pod, use, volume, node, attachable=False)
    attached = await attachments.on_node(scene, volume, pod.spec.node_name)
    if attached.waits is not None:
        return bound + attached
    return bound + attached + await _mount(scene, pod, use, volume, node, attachable=True)


async def _mount(
    scene: Scene, pod: Pod, use: Use, volume: PersistentVolume, node: Node | None, *, attachable: bool
) -> Story:
    """The kubelet's own plan for the volume, on what objects show of it."""
    where, who = pod.spec.node_name, f"kubelet of {pod.spec.node_name}"
    key = next(iter(unique_name(volume)), "")
    status = node.status if node is not None else None
    seen = kubelet.Volume(
        name=key or volume.name,
        wanted=(pod.uid,),
        attachable=attachable,
        staged=bool(key),
        one_pod=volume.spec.access_modes == (access.ONCE_POD,),
        reported=status is not None and key in status.volumes_in_use,
        attached=status is not None and any(v.name == key for v in status.volumes_attached),
    )
    match next(iter(kubelet.plan(seen)), None):
        case kubelet.Report():
            why = (
                f"{where} does not list {volume.name} in volumesInUse yet: its kubelet has not begun with it"
            )
            return Story((waits(f"mount {volume.name}", who, why, since=_since(pod)),))
        case Wait(_, why):
            return Story((waits(f"mount {volume.name}", who, why, since=_since(pod)),))
    missing = await _unregistered(scene, volume, where)
    step = await _staging(scene, pod, use, volume, key)
    if missing is not None:
        return Story((missing,), (f"see the node pod of {attachments.names_driver(volume)} on {where}",))
    return Story((step,), tuple(_mount_advice(volume, where)))


def _since(pod: Pod) -> datetime | None:
    found = (c.last_transition_time for c in pod.status.conditions if c.type == "PodScheduled")
    return moment(next(found, "")) or moment(pod.metadata.creation_timestamp)


async def _unregistered(scene: Scene, volume: PersistentVolume, node: str) -> Step | None:
    driver = attachments.names_driver(volume)
    nodes = await scene.all(CSINode)
    found = nodes.get(node)
    if (
        not driver
        or await scene.lacks(CSINode)
        or (found and any(d.name == driver for d in found.spec.drivers))
    ):
        return None
    why = f"driver {driver} is not registered on {node}: its node plugin does not run there, or not yet"
    return waits(f"mount {volume.name}", "node-driver-registrar", why)


async def _staging(scene: Scene, pod: Pod, use: Use, volume: PersistentVolume, key: str) -> Step:
    what = f"stage and mount {volume.name} (NodeStageVolume, NodePublishVolume)"
    who = f"kubelet of {pod.spec.node_name}"
    heard = [h for h in await scene.heard(pod, *FAILED) if _is_about(h, use.volume, volume.name)]
    notes = scene.roles.of(f"node/{pod.spec.node_name}", key)
    if notes and notes[0].why:
        note = notes[0]
        return waits(what, who, note.why, since=note.since, until=note.next_try, ends="tried again")
    if heard:
        newest = heard[0]
        details = [scene.told(newest)]
        return waits(what, who, newest.message, since=_since(pod), details=details)
    why = f"attached; the kubelet of {pod.spec.node_name} is at it, and has told no failure"
    return waits(what, who, why, since=_since(pod))


def _is_about(heard: Heard, *names: str) -> bool:
    return any(f'"{name}"' in heard.message or f"[{name}" in heard.message for name in names)


def _mount_advice(volume: PersistentVolume, node: str) -> list[str]:
    driver = attachments.names_driver(volume)
    return [f"see the log of {driver}'s node plugin on {node}"] if driver else []


async def _kubelet(scene: Scene, pod: Pod) -> Story:
    """Of volumes that are no claims, and of all that comes before the first container, only events tell."""
    heard = await scene.heard(pod, *FAILED, "FailedCreatePodSandBox", "FailedCreatePodContainer")
    notes = scene.roles.of(f"node/{pod.spec.node_name}", f"pod/{pod.key}")
    who = f"kubelet of {pod.spec.node_name}"
    if heard:
        newest = heard[0]
        told = scene.told(newest)
        step = waits("make ready for its containers", who, newest.message, since=_since(pod), details=(told,))
        return Story((step,))
    if notes and notes[0].why:
        return Story((waits("make ready for its containers", who, notes[0].why, since=notes[0].since),))
    return Story()
