"""A VolumeAttachment, and a volume that is to be on a node: the attach/detach controller's plan for it.

The hardest question is why a volume does not leave a node that nobody hears of. The controller waits for the
node's word, for the operator's (the node deleted, or tainted out of service), for proof that its machine is
off, or for its own six minutes, whatever comes first; which of them there is, is said here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from math import isinf

from msgspec import structs

from volplane.api.core import Node, PersistentVolume, Pod
from volplane.api.storage import VolumeAttachment
from volplane.controllers.attachdetach import plan as p
from volplane.controllers.attachdetach.controller import AttachDetach
from volplane.controllers.attachdetach.facts import MANAGED, is_managed, unique_name
from volplane.explain import fencing, sidecars
from volplane.explain.answer import Step, Story, done, later, waits
from volplane.explain.scene import Scene, ago, moment, unready
from volplane.rules.steps import Wait

CONTROLLER = "attach/detach controller"
BY_FORCE = "detached by force"


async def story(scene: Scene, attachment: VolumeAttachment, *, leaving: bool = False) -> Story:
    """Of one VolumeAttachment: being attached, attached, or on its way out; `leaving`: why it does not go."""
    controller = await scene.seen_by(AttachDetach)
    name = attachment.spec.source.persistent_volume_name or ""
    volume = controller.volumes.get(name)
    node = attachment.spec.node_name
    if volume is None or not unique_name(volume) or await scene.lacks(Pod, PersistentVolume, Node):
        return await _alone(scene, attachment, name)
    (key,) = unique_name(volume)
    view = controller.view(key)
    held = next((h for h in view.attachments if h.name == attachment.name), None)
    if held is None:
        return await _alone(scene, attachment, name)
    elsewhere = not view.shareable and any(other != node for other in view.wanted)
    leaving = leaving or elsewhere or bool(unready(controller.nodes.get(node), node, scene.now))
    if node in view.wanted and not held.deleting and not leaving:
        return await on_node(scene, volume, node)
    step, advice = await _leaving(scene, controller, view, held, key)
    return Story(
        (done(f"{volume.name} is attached to {node}", "csi-attacher"), step) if held.attached else (step,),
        advice,
    )


async def _alone(scene: Scene, attachment: VolumeAttachment, volume: str) -> Story:
    """No volume that says what it is: only the attachment itself can be read."""
    status, node = attachment.status, attachment.spec.node_name
    error = status.detach_error or status.attach_error
    who = f"csi-attacher of {attachment.spec.attacher}"
    known = (await scene.all(PersistentVolume)).get(volume) is not None or await scene.lacks(PersistentVolume)
    gone = "" if known or not volume else f"volume {volume} does not exist"
    if attachment.is_deleting:
        since = moment(attachment.metadata.deletion_timestamp)
        why = error.message if error else f"{attachment.spec.attacher} has not detached it from {node} yet"
        lost = (f"{gone}, and without it the attacher does not know what to detach",) if gone else ()
        step = waits(f"detach from {node}", who, why, since=since, details=lost)
        return Story((step,), (await sidecars.look(scene, "csi-attacher", attachment.spec.attacher)).advice)
    if not status.attached:
        since = moment(attachment.metadata.creation_timestamp)
        why = (
            error.message
            if error
            else gone or f"{attachment.spec.attacher} has not attached it to {node} yet"
        )
        return Story((waits(f"attach to {node}", who, why, since=since),), ())
    return Story((done(f"{volume or 'an inline volume'} is attached to {node}", who),))


# --- towards a node


async def on_node(scene: Scene, volume: PersistentVolume, node: str) -> Story:
    """The volume is to be attached to the node, and the node is to know."""
    controller = await scene.seen_by(AttachDetach)
    (key,) = unique_name(volume)
    view = controller.view(key)
    held = next((h for h in view.attachments if h.node == node), None)
    what, short = f"attach {volume.name} to {node}", names_driver(volume)
    if held is not None:
        return await _awaited(scene, controller, view, held, key, what, short)
    if node not in view.wanted:
        return Story((_unwanted(scene, controller, volume, node, what),))
    others = [h for h in view.attachments if h.node != node]
    if view.shareable or not others:
        step = waits(
            what, CONTROLLER, "the controller has it to do, and has not created the VolumeAttachment yet"
        )
        timed = scene.roles.timed(step, AttachDetach.name, key)
        hint = "look again in a second; if it stays so, see whether kube-controller-manager runs"
        return Story((timed, later("mount", "kubelet")), (hint,))
    return await _taken(scene, controller, view, node, others, key, what)


async def _awaited(
    scene: Scene,
    controller: AttachDetach,
    view: p.View,
    held: p.ExistingAttachment,
    key: str,
    what: str,
    driver: str,
) -> Story:
    """There is an attachment on the node already."""
    attachment = controller.attachments.get(held.name)
    steps = list(p.awaiting(view, held))
    since = moment(attachment.metadata.creation_timestamp) if attachment is not None else None
    for step in steps:
        if isinstance(step, Wait):
            told = waits(what, f"csi-attacher of {driver}", step.why, since=since)
            told = scene.roles.timed(told, AttachDetach.name, key)
            return await _attacher(scene, told, driver, held)
    if any(isinstance(step, p.ReportAttachFailure) for step in steps):
        why = next(step.message for step in steps if isinstance(step, p.ReportAttachFailure))
        return await _attacher(
            scene, waits(what, f"csi-attacher of {driver}", why, since=since), driver, held
        )
    attached = done(what.replace("attach ", "attached ", 1), f"csi-attacher of {driver}")
    if any(isinstance(step, p.AddToVolumesAttached) for step in steps):
        why = f"it is attached, and {held.node}'s volumesAttached does not list it yet"
        return Story((attached, waits("tell the node (volumesAttached)", CONTROLLER, why, since=since)))
    return Story((attached,))


async def _attacher(scene: Scene, step: Step, driver: str, held: p.ExistingAttachment) -> Story:
    beside = await sidecars.look(scene, "csi-attacher", driver)
    notes = scene.roles.of("csi-attacher", held.name)
    again = (f"tried again in {ago(n.next_try - scene.now)}" for n in notes if n.next_try)
    told = structs.replace(step, details=(*step.details, *again, *beside.facts))
    return Story((told,), beside.advice)


def _unwanted(scene: Scene, controller: AttachDetach, volume: PersistentVolume, node: str, what: str) -> Step:
    found = controller.nodes.get(node)
    if found is None:
        return waits(what, CONTROLLER, f"node {node} does not exist")
    if not is_managed(found):
        why = f"{node} does not leave attaching to the controller (annotation {MANAGED} is missing)"
        return waits(what, "kubelet", why)
    return waits(what, CONTROLLER, f"claim and volume {volume.name} do not name each other yet")


# --- taken by another node


async def _taken(
    scene: Scene,
    controller: AttachDetach,
    view: p.View,
    node: str,
    others: Sequence[p.ExistingAttachment],
    key: str,
    what: str,
) -> Story:
    """An exclusive volume is elsewhere: why it does not leave is why it does not come."""
    first = next((step for step in p.entering(view, node) if isinstance(step, Wait)), None)
    where = ", ".join(h.node for h in others)
    why = first.why if first is not None else f"not free for {node}: it leaves {where} first"
    since = _scheduled(view.wanted.get(node, ()))
    mine = scene.roles.timed(waits(what, CONTROLLER, why, since=since), AttachDetach.name, key)
    holders = [await _leaving(scene, controller, view, held, key) for held in others]
    causes = [step for step, _ in holders]
    cause = causes[0]
    told = waits(
        what,
        CONTROLLER,
        f"{why}. {cause.why}",
        since=since or mine.since,
        until=cause.until,
        ends=cause.ends,
        details=[line for step in causes for line in step.details],
    )
    advice = tuple(dict.fromkeys(line for _, lines in holders for line in lines))
    return Story((told, later(f"mount on {node}", "kubelet")), advice)


def _scheduled(pods: Sequence[Pod]) -> datetime | None:
    stamps = [
        c.last_transition_time
        for pod in pods
        for c in pod.status.conditions
        if c.type == "PodScheduled" and c.status == "True"
    ]
    return moment(min(stamps, default=""))


async def _leaving(
    scene: Scene, controller: AttachDetach, view: p.View, held: p.ExistingAttachment, key: str
) -> tuple[Step, tuple[str, ...]]:
    """Why the volume is still attached to a node, whoever asks."""
    node = controller.nodes.get(held.node)
    trouble = unready(node, held.node, scene.now)
    users = view.wanted.get(held.node, ())
    what = f"leave {held.node}"
    if users and not held.deleting:
        return await _used(scene, what, held, users, trouble, node)
    attachment = controller.attachments.get(held.name)
    for step in p.leaving(view, held):
        if isinstance(step, Wait):
            return await _waiting(scene, what, held, step, trouble, node, key, attachment)
    why = f"nothing keeps it on {held.node}: it is detached any moment"
    return waits(what, CONTROLLER, why), ("look again in a second",)


async def _used(
    scene: Scene, what: str, held: p.ExistingAttachment, users: Sequence[Pod], trouble: str, node: Node | None
) -> tuple[Step, tuple[str, ...]]:
    """Pods on that node need it there, as far as anybody knows."""
    shown = [_user(scene, pod) for pod in users]
    here = ", ".join(pod.key for pod in users)
    if not trouble:
        going = all(pod.is_deleting for pod in users)
        why = f"pod {here} on {held.node} {'is still stopping' if going else 'uses it there'}"
        hint = [f"volplane explain pod/{pod.name} -n {pod.namespace}" for pod in users if pod.is_deleting]
        if not going:
            hint = [
                f"kubectl delete pod -n {pod.namespace} {pod.name}, if the other one is to have it"
                for pod in users
            ]
        return waits(what, "kubelet", why, details=shown), tuple(hint)
    why = f"{trouble}, and pod {here} counts as running there until somebody vouches that it does not"
    details = [*shown, *fencing.facts(scene, held.node, node), "no timer runs while that pod exists"]
    return waits(what, CONTROLLER, why, details=details), fencing.advice(held.node, node)


def _user(scene: Scene, pod: Pod) -> str:
    since = moment(pod.metadata.deletion_timestamp)
    going = f" for {ago(scene.now - since)}" if since and since < scene.now else ""
    phase = "Terminating" if pod.is_deleting else pod.status.phase
    return f"pod {pod.key} on {pod.spec.node_name}: {phase}{going}"


async def _waiting(
    scene: Scene,
    what: str,
    held: p.ExistingAttachment,
    step: Wait,
    trouble: str,
    node: Node | None,
    key: str,
    attachment: VolumeAttachment | None,
) -> tuple[Step, tuple[str, ...]]:
    """The plan's own reason, with the role's own timer where it can be asked."""
    if held.deleting:
        since = moment(attachment.metadata.deletion_timestamp) if attachment is not None else None
        driver = attachment.spec.attacher if attachment is not None else "its driver"
        told = scene.roles.timed(
            waits(what, f"csi-attacher of {driver}", step.why, since=since), AttachDetach.name, key
        )
        found = await _attacher(scene, told, driver, held)
        return found.steps[0], found.advice
    told = waits(what, CONTROLLER if trouble else "kubelet", step.why)
    timed = scene.roles.timed(told, AttachDetach.name, key)
    if not trouble:
        details = (f"{held.node} lists it in volumesInUse", *_mounts(scene, held.node, key))
        hint = f"see the kubelet of {held.node}: events of the pod that was there, and its log"
        return structs.replace(timed, details=details), (hint,)
    proof = fencing.facts(scene, held.node, node)
    lines = (
        f"{held.node} lists it in volumesInUse, and {trouble}",
        *_grace(scene, step, timed.until),
        *proof,
    )
    ends = "" if isinf(step.seconds) else BY_FORCE
    return structs.replace(timed, ends=ends, details=lines), fencing.advice(held.node, node)


def _grace(scene: Scene, step: Wait, until: datetime | None) -> list[str]:
    """What is left of the controller's patience; the timer is its own, objects only know how long it is."""
    if isinf(step.seconds):
        return ["the controller detaches nothing by force (--disable-force-detach-on-timeout)"]
    if until is None:
        most = ago(timedelta(seconds=step.seconds))
        return [f"{BY_FORCE} at most {most} after its last pod left (--max-wait-for-unmount)"]
    return [f"--max-wait-for-unmount: {ago(until - scene.now)} left"]


def _mounts(scene: Scene, node: str, key: str) -> list[str]:
    return [f"kubelet of {node}: {note.why}" for note in scene.roles.of(f"node/{node}", key)]


def names_driver(volume: PersistentVolume) -> str:
    return volume.spec.csi.driver if volume.spec.csi is not None else ""


def rest(attachment: VolumeAttachment) -> str:
    return f"{attachment.spec.source.persistent_volume_name} is attached to {attachment.spec.node_name}"
