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
from volplane.explain.cluster_state import ClusterState, describe_node_problem, format_duration, parse_time
from volplane.explain.result import Explanation, ExplanationStep, done_step, later_step, waiting_step
from volplane.rules.waits import Wait

CONTROLLER = "attach/detach controller"
BY_FORCE = "detached by force"


async def story(scene: ClusterState, attachment: VolumeAttachment, *, leaving: bool = False) -> Explanation:
    """Of one VolumeAttachment: being attached, attached, or on its way out; `leaving`: why it does not go."""
    controller = await scene.load_controller(AttachDetach)
    name = attachment.spec.source.persistent_volume_name or ""
    volume = controller.volumes.get(name)
    node = attachment.spec.node_name
    if volume is None or not unique_name(volume) or await scene.cannot_read(Pod, PersistentVolume, Node):
        return await _explain_without_volume(scene, attachment, name)
    (key,) = unique_name(volume)
    view = controller.view(key)
    held = next((h for h in view.attachments if h.name == attachment.name), None)
    if held is None:
        return await _explain_without_volume(scene, attachment, name)
    elsewhere = not view.shareable and any(other != node for other in view.wanted)
    leaving = leaving or elsewhere or bool(describe_node_problem(controller.nodes.get(node), node, scene.now))
    if node in view.wanted and not held.deleting and not leaving:
        return await explain_attach(scene, volume, node)
    step, advice = await _explain_detach(scene, controller, view, held, key)
    return Explanation(
        (done_step(f"{volume.name} is attached to {node}", "csi-attacher"), step)
        if held.attached
        else (step,),
        advice,
    )


async def _explain_without_volume(
    scene: ClusterState, attachment: VolumeAttachment, volume: str
) -> Explanation:
    """No volume that says what it is: only the attachment itself can be read."""
    status, node = attachment.status, attachment.spec.node_name
    error = status.detach_error or status.attach_error
    who = f"csi-attacher of {attachment.spec.attacher}"
    known = (await scene.cache(PersistentVolume)).get(volume) is not None or await scene.cannot_read(
        PersistentVolume
    )
    gone = "" if known or not volume else f"volume {volume} does not exist"
    if attachment.is_deleting:
        since = parse_time(attachment.metadata.deletion_timestamp)
        why = error.message if error else f"{attachment.spec.attacher} has not detached it from {node} yet"
        lost = (f"{gone}, and without it the attacher does not know what to detach",) if gone else ()
        step = waiting_step(f"detach from {node}", who, why, since=since, details=lost)
        return Explanation(
            (step,), (await sidecars.find_sidecar(scene, "csi-attacher", attachment.spec.attacher)).advice
        )
    if not status.attached:
        since = parse_time(attachment.metadata.creation_timestamp)
        why = (
            error.message
            if error
            else gone or f"{attachment.spec.attacher} has not attached it to {node} yet"
        )
        return Explanation((waiting_step(f"attach to {node}", who, why, since=since),), ())
    return Explanation((done_step(f"{volume or 'an inline volume'} is attached to {node}", who),))


# --- towards a node


async def explain_attach(scene: ClusterState, volume: PersistentVolume, node: str) -> Explanation:
    """The volume is to be attached to the node, and the node is to know."""
    controller = await scene.load_controller(AttachDetach)
    (key,) = unique_name(volume)
    view = controller.view(key)
    held = next((h for h in view.attachments if h.node == node), None)
    what, short = f"attach {volume.name} to {node}", driver_of(volume)
    if held is not None:
        return await _explain_attaching(scene, controller, view, held, key, what, short)
    if node not in view.wanted:
        return Explanation((_explain_not_wanted(scene, controller, volume, node, what),))
    others = [h for h in view.attachments if h.node != node]
    if view.shareable or not others:
        step = waiting_step(
            what, CONTROLLER, "the controller has it to do, and has not created the VolumeAttachment yet"
        )
        timed = scene.roles.add_times(step, AttachDetach.name, key)
        hint = "look again in a second; if it stays so, see whether kube-controller-manager runs"
        return Explanation((timed, later_step("mount", "kubelet")), (hint,))
    return await _explain_attached_elsewhere(scene, controller, view, node, others, key, what)


async def _explain_attaching(
    scene: ClusterState,
    controller: AttachDetach,
    view: p.AttachDetachView,
    held: p.ExistingAttachment,
    key: str,
    what: str,
    driver: str,
) -> Explanation:
    """There is an attachment on the node already."""
    attachment = controller.attachments.get(held.name)
    steps = list(p.plan_pending_attach(view, held))
    since = parse_time(attachment.metadata.creation_timestamp) if attachment is not None else None
    for step in steps:
        if isinstance(step, Wait):
            told = waiting_step(what, f"csi-attacher of {driver}", step.why, since=since)
            told = scene.roles.add_times(told, AttachDetach.name, key)
            return await _add_attacher_facts(scene, told, driver, held)
    if any(isinstance(step, p.ReportAttachFailure) for step in steps):
        why = next(step.message for step in steps if isinstance(step, p.ReportAttachFailure))
        return await _add_attacher_facts(
            scene, waiting_step(what, f"csi-attacher of {driver}", why, since=since), driver, held
        )
    attached = done_step(what.replace("attach ", "attached ", 1), f"csi-attacher of {driver}")
    if any(isinstance(step, p.AddToVolumesAttached) for step in steps):
        why = f"it is attached, and {held.node}'s volumesAttached does not list it yet"
        return Explanation(
            (attached, waiting_step("tell the node (volumesAttached)", CONTROLLER, why, since=since))
        )
    return Explanation((attached,))


async def _add_attacher_facts(
    scene: ClusterState, step: ExplanationStep, driver: str, held: p.ExistingAttachment
) -> Explanation:
    beside = await sidecars.find_sidecar(scene, "csi-attacher", driver)
    notes = scene.roles.of("csi-attacher", held.name)
    again = (f"tried again in {format_duration(n.next_try - scene.now)}" for n in notes if n.next_try)
    told = structs.replace(step, details=(*step.details, *again, *beside.facts))
    return Explanation((told,), beside.advice)


def _explain_not_wanted(
    scene: ClusterState, controller: AttachDetach, volume: PersistentVolume, node: str, what: str
) -> ExplanationStep:
    found = controller.nodes.get(node)
    if found is None:
        return waiting_step(what, CONTROLLER, f"node {node} does not exist")
    if not is_managed(found):
        why = f"{node} does not leave attaching to the controller (annotation {MANAGED} is missing)"
        return waiting_step(what, "kubelet", why)
    return waiting_step(what, CONTROLLER, f"claim and volume {volume.name} do not name each other yet")


# --- taken by another node


async def _explain_attached_elsewhere(
    scene: ClusterState,
    controller: AttachDetach,
    view: p.AttachDetachView,
    node: str,
    others: Sequence[p.ExistingAttachment],
    key: str,
    what: str,
) -> Explanation:
    """An exclusive volume is elsewhere: why it does not leave is why it does not come."""
    first = next((step for step in p.plan_exclusive_attach(view, node) if isinstance(step, Wait)), None)
    where = ", ".join(h.node for h in others)
    why = first.why if first is not None else f"not free for {node}: it leaves {where} first"
    since = _scheduled_since(view.wanted.get(node, ()))
    mine = scene.roles.add_times(waiting_step(what, CONTROLLER, why, since=since), AttachDetach.name, key)
    holders = [await _explain_detach(scene, controller, view, held, key) for held in others]
    causes = [step for step, _ in holders]
    cause = causes[0]
    told = waiting_step(
        what,
        CONTROLLER,
        f"{why}. {cause.why}",
        since=since or mine.since,
        until=cause.until,
        ends=cause.ends,
        details=[line for step in causes for line in step.details],
    )
    advice = tuple(dict.fromkeys(line for _, lines in holders for line in lines))
    return Explanation((told, later_step(f"mount on {node}", "kubelet")), advice)


def _scheduled_since(pods: Sequence[Pod]) -> datetime | None:
    stamps = [
        c.last_transition_time
        for pod in pods
        for c in pod.status.conditions
        if c.type == "PodScheduled" and c.status == "True"
    ]
    return parse_time(min(stamps, default=""))


async def _explain_detach(
    scene: ClusterState,
    controller: AttachDetach,
    view: p.AttachDetachView,
    held: p.ExistingAttachment,
    key: str,
) -> tuple[ExplanationStep, tuple[str, ...]]:
    """Why the volume is still attached to a node, whoever asks."""
    node = controller.nodes.get(held.node)
    trouble = describe_node_problem(node, held.node, scene.now)
    users = view.wanted.get(held.node, ())
    what = f"leave {held.node}"
    if users and not held.deleting:
        return await _explain_in_use(scene, what, held, users, trouble, node)
    attachment = controller.attachments.get(held.name)
    for step in p.plan_detach(view, held):
        if isinstance(step, Wait):
            return await _explain_detach_wait(scene, what, held, step, trouble, node, key, attachment)
    why = f"nothing keeps it on {held.node}: it is detached any moment"
    return waiting_step(what, CONTROLLER, why), ("look again in a second",)


async def _explain_in_use(
    scene: ClusterState,
    what: str,
    held: p.ExistingAttachment,
    users: Sequence[Pod],
    trouble: str,
    node: Node | None,
) -> tuple[ExplanationStep, tuple[str, ...]]:
    """Pods on that node need it there, as far as anybody knows."""
    shown = [_describe_user(scene, pod) for pod in users]
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
        return waiting_step(what, "kubelet", why, details=shown), tuple(hint)
    why = f"{trouble}, and pod {here} counts as running there until somebody vouches that it does not"
    details = [
        *shown,
        *fencing.describe_fencing(scene, held.node, node),
        "no timer runs while that pod exists",
    ]
    return waiting_step(what, CONTROLLER, why, details=details), fencing.advise_fencing(held.node, node)


def _describe_user(scene: ClusterState, pod: Pod) -> str:
    since = parse_time(pod.metadata.deletion_timestamp)
    going = f" for {format_duration(scene.now - since)}" if since and since < scene.now else ""
    phase = "Terminating" if pod.is_deleting else pod.status.phase
    return f"pod {pod.key} on {pod.spec.node_name}: {phase}{going}"


async def _explain_detach_wait(
    scene: ClusterState,
    what: str,
    held: p.ExistingAttachment,
    step: Wait,
    trouble: str,
    node: Node | None,
    key: str,
    attachment: VolumeAttachment | None,
) -> tuple[ExplanationStep, tuple[str, ...]]:
    """The plan's own reason, with the role's own timer where it can be asked."""
    if held.deleting:
        since = parse_time(attachment.metadata.deletion_timestamp) if attachment is not None else None
        driver = attachment.spec.attacher if attachment is not None else "its driver"
        told = scene.roles.add_times(
            waiting_step(what, f"csi-attacher of {driver}", step.why, since=since), AttachDetach.name, key
        )
        found = await _add_attacher_facts(scene, told, driver, held)
        return found.steps[0], found.advice
    told = waiting_step(what, CONTROLLER if trouble else "kubelet", step.why)
    timed = scene.roles.add_times(told, AttachDetach.name, key)
    if not trouble:
        details = (f"{held.node} lists it in volumesInUse", *_kubelet_reports(scene, held.node, key))
        hint = f"see the kubelet of {held.node}: events of the pod that was there, and its log"
        return structs.replace(timed, details=details), (hint,)
    proof = fencing.describe_fencing(scene, held.node, node)
    lines = (
        f"{held.node} lists it in volumesInUse, and {trouble}",
        *_describe_grace(scene, step, timed.until),
        *proof,
    )
    ends = "" if isinf(step.seconds) else BY_FORCE
    return structs.replace(timed, ends=ends, details=lines), fencing.advise_fencing(held.node, node)


def _describe_grace(scene: ClusterState, step: Wait, until: datetime | None) -> list[str]:
    """What is left of the controller's patience; the timer is its own, objects only know how long it is."""
    if isinf(step.seconds):
        return ["the controller detaches nothing by force (--disable-force-detach-on-timeout)"]
    if until is None:
        most = format_duration(timedelta(seconds=step.seconds))
        return [f"{BY_FORCE} at most {most} after its last pod left (--max-wait-for-unmount)"]
    return [f"--max-wait-for-unmount: {format_duration(until - scene.now)} left"]


def _kubelet_reports(scene: ClusterState, node: str, key: str) -> list[str]:
    return [f"kubelet of {node}: {note.why}" for note in scene.roles.of(f"node/{node}", key)]


def driver_of(volume: PersistentVolume) -> str:
    return volume.spec.csi.driver if volume.spec.csi is not None else ""


def rest(attachment: VolumeAttachment) -> str:
    return f"{attachment.spec.source.persistent_volume_name} is attached to {attachment.spec.node_name}"
