"""A VolumeAttachment, and a volume that has to be attached to a node: the attach/detach controller's plan.

The hardest question is why a volume is not detached from a node that is not ready. The controller waits until
the node reports the unmount, an operator deletes the node or taints it out-of-service, the fencer proves that
its machine is off, or the force-detach timeout is over, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from math import isinf

from msgspec import structs

from volplane.api.annotations import CONTROLLER_MANAGED_ATTACH_ANNOTATION
from volplane.api.core import Node, PersistentVolume, Pod
from volplane.api.storage import CSINode, VolumeAttachment
from volplane.controllers.attachdetach import plan as p
from volplane.controllers.attachdetach.controller import AttachDetach
from volplane.controllers.attachdetach.facts import is_managed, unique_name
from volplane.explain import fencing, flexvolumes, sidecars
from volplane.explain.claims import check_again
from volplane.explain.cluster_state import ClusterState, describe_node_problem, format_duration, parse_time
from volplane.explain.result import Explanation, ExplanationStep, done_step, later_step, waiting_step
from volplane.rules.csi_translation import find_csi_source
from volplane.rules.waits import Wait
from volplane.sidecars.attacher import plan as attacher
from volplane.volumes.flex.attachment import attached_flex_volume
from volplane.volumes.flex.options import ATTACHER as FLEX_ATTACHER

CONTROLLER = "attach/detach controller"
ATTACHER = "csi-attacher"
FORCED = "forced detach"
INLINE = "an inline volume"

Detach = tuple[ExplanationStep, tuple[str, ...]]  # why the volume stays attached, and advice


async def explain(state: ClusterState, attachment: VolumeAttachment, *, leaving: bool = False) -> Explanation:
    """One VolumeAttachment: attaching, attached or detaching. `leaving`: explain why it is not detached."""
    controller = await state.load_controller(AttachDetach)
    name = attachment.spec.source.persistent_volume_name or ""
    volume = controller.volumes.get(name)
    node = attachment.spec.node_name
    keys = attached_flex_volume(attachment) or (unique_name(volume) if volume is not None else [])
    if not keys or await state.cannot_read(Pod, PersistentVolume, Node):
        return await _explain_without_volume(state, attachment, name)
    (key,) = keys
    view = controller.view(key)
    existing = next((a for a in view.attachments if a.name == attachment.name), None)
    if existing is None:
        return await _explain_without_volume(state, attachment, name)
    elsewhere = not view.shareable and any(other != node for other in view.wanted)
    problem = describe_node_problem(controller.nodes.get(node), node, state.now)
    if node in view.wanted and not existing.deleting and not (leaving or elsewhere or problem):
        return await explain_attach(state, key, node)
    step, advice = await _explain_detach(state, controller, view, existing, key)
    attached = done_step(f"{view.title} is attached to {node}", _attacher_of(view))
    return Explanation((attached, step) if existing.attached else (step,), advice)


def summarize(attachment: VolumeAttachment) -> str:
    flex = next(iter(attached_flex_volume(attachment)), INLINE)
    volume = attachment.spec.source.persistent_volume_name or flex
    return f"{volume} is attached to {attachment.spec.node_name}"


async def _explain_without_volume(
    state: ClusterState, attachment: VolumeAttachment, volume: str
) -> Explanation:
    """The volume is missing or may not be read: only the attachment itself is known."""
    status, node, attacher = attachment.status, attachment.spec.node_name, attachment.spec.attacher
    error = status.detach_error or status.attach_error
    who = f"{ATTACHER} of {attacher}"
    volumes = await state.cache(PersistentVolume)
    exists = volumes.get(volume) is not None or await state.cannot_read(PersistentVolume)
    missing = "" if exists or not volume else f"volume {volume} does not exist"
    if attachment.is_deleting:
        since = parse_time(attachment.metadata.deletion_timestamp)
        why = error.message if error else f"{attacher} has not detached the volume from {node} yet"
        details = (f"{missing}, so the attacher does not know what to detach",) if missing else ()
        step = waiting_step(f"detach from {node}", who, why, since=since, details=details)
        return Explanation((step,), (await sidecars.find_sidecar(state, ATTACHER, attacher)).advice)
    if not status.attached:
        since = parse_time(attachment.metadata.creation_timestamp)
        pending = missing or f"{attacher} has not attached the volume to {node} yet"
        why = error.message if error else pending
        return Explanation((waiting_step(f"attach to {node}", who, why, since=since),))
    return Explanation((done_step(f"{volume or INLINE} is attached to {node}", who),))


# --- attaching


async def explain_attach(state: ClusterState, key: str, node: str) -> Explanation:
    """The volume, by its unique name, has to be attached to the node, which has to list it as attached."""
    controller = await state.load_controller(AttachDetach)
    view = controller.view(key)
    existing = p.serving_attachments(view).get(node)
    what = f"attach {view.title} to {node}"
    if existing is not None:
        return await _explain_attaching(state, controller, view, existing, key, what)
    if node not in view.wanted:
        return Explanation((_explain_not_wanted(controller, view.title, node, what),))
    if missing := flexvolumes.find_missing_driver(state, key):
        return flexvolumes.explain_missing_driver(what, missing)
    waits = (step for step in p.plan(view) if isinstance(step, Wait) and step.data.node == node)
    wait = next(waits, None)
    others = [a for a in view.attachments if a.node != node]
    if wait is None or not others:
        why = wait or "the controller has not created the VolumeAttachment yet"
        step = waiting_step(what, CONTROLLER, why)
        return Explanation((step, later_step("mount", "kubelet")), (check_again("kube-controller-manager"),))
    return await _explain_attached_elsewhere(state, controller, view, wait, others, key, what)


async def _explain_attaching(
    state: ClusterState,
    controller: AttachDetach,
    view: p.AttachDetachView,
    existing: p.ExistingAttachment,
    key: str,
    what: str,
) -> Explanation:
    """The node has a VolumeAttachment already."""
    driver, volume = view.driver, controller.volumes.get(view.title)
    attachment = controller.attachments.get(existing.name)
    since = parse_time(attachment.metadata.creation_timestamp) if attachment is not None else None
    who = _attacher_of(view)
    steps = list(p.plan_pending_attach(view, existing))
    for step in steps:
        if isinstance(step, Wait):
            waiting = waiting_step(what, who, step, since=since)
            waiting = state.roles.add_times(waiting, AttachDetach.name, key, step)
            return await _add_attacher_facts(state, waiting, driver, attachment, volume)
    for step in steps:
        if isinstance(step, p.ReportAttachFailure):
            waiting = waiting_step(what, who, step.message, since=since)
            return await _add_attacher_facts(state, waiting, driver, attachment, volume)
    attached = done_step(what.replace("attach ", "attached ", 1), who)
    if any(isinstance(step, p.AddToVolumesAttached) for step in steps):
        why = f"attached, but status.volumesAttached of {existing.node} does not list it yet"
        return Explanation((attached, waiting_step("update volumesAttached", CONTROLLER, why, since=since)))
    return Explanation((attached,))


async def _add_attacher_facts(
    state: ClusterState,
    step: ExplanationStep,
    driver: str,
    attachment: VolumeAttachment | None,
    volume: PersistentVolume | None,
) -> Explanation:
    """The step with what the attacher's own plan waits for, its next attempt, and whether it runs."""
    if attachment is not None and attachment.spec.attacher == FLEX_ATTACHER:
        return flexvolumes.add_controller_facts(state, step, attachment)
    sidecar = await sidecars.find_sidecar(state, ATTACHER, driver)
    waits: list[str] = []
    reports = state.roles.find(ATTACHER, attachment.name) if attachment is not None else []
    if attachment is not None and not await state.cannot_read(CSINode):
        node = (await state.cache(CSINode)).get(attachment.spec.node_name)
        info = attacher.AttacherDriverInfo(driver)
        planned = attacher.plan(attachment, volume, node, info)
        waits = [f"{ATTACHER}: {wait.text}" for wait in planned if isinstance(wait, Wait)]
    retries = (f"retried in {format_duration(r.next_try - state.now)}" for r in reports if r.next_try)
    details = (*step.details, *waits, *retries, *sidecar.facts)
    return Explanation((structs.replace(step, details=details),), sidecar.advice)


def _explain_not_wanted(controller: AttachDetach, volume: str, node: str, what: str) -> ExplanationStep:
    found = controller.nodes.get(node)
    if found is None:
        return waiting_step(what, CONTROLLER, f"node {node} does not exist")
    if not is_managed(found):
        why = (
            f"the controller does not attach volumes for {node}: "
            f"annotation {CONTROLLER_MANAGED_ATTACH_ANNOTATION} is missing"
        )
        return waiting_step(what, "kubelet", why)
    return waiting_step(what, CONTROLLER, f"claim and volume {volume} do not refer to each other yet")


# --- attached to another node


async def _explain_attached_elsewhere(
    state: ClusterState,
    controller: AttachDetach,
    view: p.AttachDetachView,
    wait: Wait,
    others: Sequence[p.ExistingAttachment],
    key: str,
    what: str,
) -> Explanation:
    """An exclusive volume is attached elsewhere, and waits for the detach there."""
    node = wait.data.node
    since = _scheduled_since(view.wanted.get(node, ()))
    step = waiting_step(what, CONTROLLER, wait, since=since)
    timed = state.roles.add_times(step, AttachDetach.name, key, wait)
    holders = [await _explain_detach(state, controller, view, other, key) for other in others]
    causes = [cause for cause, _ in holders]
    waiting = structs.replace(
        step,
        why=f"{step.why}. {causes[0].why}",
        since=since or timed.since,
        until=causes[0].until,
        ends=causes[0].ends,
        details=tuple(line for cause in causes for line in cause.details),
    )
    advice = tuple(dict.fromkeys(line for _, lines in holders for line in lines))
    return Explanation((waiting, later_step(f"mount on {node}", "kubelet")), advice)


def _scheduled_since(pods: Sequence[Pod]) -> datetime | None:
    stamps = [
        c.last_transition_time
        for pod in pods
        for c in pod.status.conditions
        if c.type == "PodScheduled" and c.status == "True"
    ]
    return parse_time(min(stamps, default=""))


async def _explain_detach(
    state: ClusterState,
    controller: AttachDetach,
    view: p.AttachDetachView,
    existing: p.ExistingAttachment,
    key: str,
) -> Detach:
    """Why the volume is still attached to a node."""
    node = controller.nodes.get(existing.node)
    problem = describe_node_problem(node, existing.node, state.now)
    users = view.wanted.get(existing.node, ())
    what = f"detach from {existing.node}"
    if users and not existing.deleting:
        return _explain_in_use(state, what, existing, users, problem, node)
    for step in p.plan_detach(view, existing):
        if isinstance(step, Wait):
            if existing.deleting:
                return await _explain_attacher_wait(state, controller, what, existing, step, key)
            return _explain_unmount_wait(state, what, step, problem, node, key)
    why = f"nothing uses it on {existing.node}: it is detached now"
    return waiting_step(what, CONTROLLER, why), (check_again("kube-controller-manager"),)


def _explain_in_use(
    state: ClusterState,
    what: str,
    existing: p.ExistingAttachment,
    users: Sequence[Pod],
    problem: str,
    node: Node | None,
) -> Detach:
    """Pods on that node use the volume, or may still do so."""
    details = [_describe_user(state, pod) for pod in users]
    names = ", ".join(pod.key for pod in users)
    if not problem:
        stopping = all(pod.is_deleting for pod in users)
        why = f"pod {names} on {existing.node} {'is still terminating' if stopping else 'uses it'}"
        advice = [f"volplane explain pod/{pod.name} -n {pod.namespace}" for pod in users if pod.is_deleting]
        if not stopping:
            advice = [
                f"kubectl delete pod -n {pod.namespace} {pod.name}, if the other pod should have the volume"
                for pod in users
            ]
        return waiting_step(what, "kubelet", why, details=details), tuple(advice)
    why = (
        f"{problem}, so pod {names} counts as running there until {existing.node} is ready again, is "
        "deleted, or is tainted out-of-service"
    )
    details += [
        *fencing.describe_fencing(state, existing.node, node),
        "no timer runs while that pod exists",
    ]
    return waiting_step(what, CONTROLLER, why, details=details), fencing.advise_fencing(existing.node, node)


def _describe_user(state: ClusterState, pod: Pod) -> str:
    since = parse_time(pod.metadata.deletion_timestamp)
    duration = f" for {format_duration(state.now - since)}" if since and since < state.now else ""
    phase = "Terminating" if pod.is_deleting else pod.status.phase
    return f"pod {pod.key} on {pod.spec.node_name}: {phase}{duration}"


async def _explain_attacher_wait(
    state: ClusterState,
    controller: AttachDetach,
    what: str,
    existing: p.ExistingAttachment,
    wait: Wait,
    key: str,
) -> Detach:
    """The VolumeAttachment is being deleted: the attacher has to detach."""
    attachment = controller.attachments.get(existing.name)
    since = parse_time(attachment.metadata.deletion_timestamp) if attachment is not None else None
    driver = attachment.spec.attacher if attachment is not None else wait.data.driver
    source = attachment.spec.source.persistent_volume_name if attachment is not None else ""
    step = waiting_step(what, _attacher_of(controller.view(key)), wait, since=since)
    timed = state.roles.add_times(step, AttachDetach.name, key, wait)
    volume = controller.volumes.get(source or "")
    explanation = await _add_attacher_facts(state, timed, driver, attachment, volume)
    return explanation.steps[0], explanation.advice


def _explain_unmount_wait(
    state: ClusterState, what: str, wait: Wait, problem: str, node: Node | None, key: str
) -> Detach:
    """The node has to unmount first; with the controller's own timer where it can be asked."""
    name = wait.data.node
    step = waiting_step(what, CONTROLLER if problem else "kubelet", wait)
    timed = state.roles.add_times(step, AttachDetach.name, key, wait)
    listed = f"{name} lists it in volumesInUse"
    if not problem:
        details = (listed, *_kubelet_reports(state, name, key))
        advice = f"check the kubelet of {name}: the events of the pod that used the volume, and its log"
        return structs.replace(timed, details=details), (advice,)
    details = (
        f"{listed}; {problem}",
        *_describe_grace(state, wait, timed.until),
        *fencing.describe_fencing(state, name, node),
    )
    ends = "" if isinf(wait.seconds) else FORCED
    return structs.replace(timed, ends=ends, details=details), fencing.advise_fencing(name, node)


def _describe_grace(state: ClusterState, wait: Wait, until: datetime | None) -> list[str]:
    """The time until the forced detach. Only the running controller knows when it began."""
    if isinf(wait.seconds):
        return ["forced detach is disabled (--disable-force-detach-on-timeout)"]
    if until is None:
        limit = format_duration(timedelta(seconds=wait.seconds))
        return [f"{FORCED} at most {limit} after the last pod left (--max-wait-for-unmount)"]
    return [f"--max-wait-for-unmount: {format_duration(until - state.now)} left"]


def _kubelet_reports(state: ClusterState, node: str, key: str) -> list[str]:
    return [f"kubelet of {node}: {report.why}" for report in state.roles.find(f"node/{node}", key)]


def _attacher_of(view: p.AttachDetachView) -> str:
    return f"FlexVolume driver {view.driver}" if view.is_flex else f"{ATTACHER} of {view.driver}"


def driver_of(volume: PersistentVolume) -> str:
    source = find_csi_source(volume)
    return source.driver if source is not None else ""
