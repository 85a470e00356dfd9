"""A claim: waits for a consumer, for a volume that fits, for its driver, for more room, or for its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import StorageClass
from volplane.controllers.binder import plan as binding
from volplane.controllers.binder.controller import Binder
from volplane.controllers.binder.steps import SetClaimRef, SetProvisioner
from volplane.controllers.protection import plan as protection
from volplane.explain import finalizers, sidecars
from volplane.explain.cluster_state import ClusterState, EventRecord, parse_time
from volplane.explain.result import Explanation, ExplanationStep, done_step, later_step, waiting_step
from volplane.rules import classes, matching, pods, resizing, sizes
from volplane.rules.binding import CLAIM_PROTECTION, SELECTED_NODE, claim_class, is_free_for
from volplane.rules.resizing import ResizeState as Growth
from volplane.rules.steps import RecordEvent, Requeue
from volplane.rules.waits import Wait

BINDER = "persistent volume binder"
PROVISIONING = ("ProvisioningFailed", "ProvisioningTimeout")
RESIZING = ("VolumeResizeFailed", "FileSystemResizeFailed")
MANY = 8  # candidates that are named; of more only the number


async def story(scene: ClusterState, claim: PersistentVolumeClaim) -> Explanation:
    if claim.is_deleting:
        return await explain_deletion(scene, claim)
    if await scene.cannot_read(PersistentVolume, StorageClass):
        return await _explain_from_events(scene, claim)
    binder = await scene.load_controller(Binder)
    told = await _explain_binding(scene, claim, binder)
    if told.first_wait is None and claim.status.phase == "Bound":
        told += await _explain_resize(scene, claim, binder)
    return told


def rest(claim: PersistentVolumeClaim) -> str:
    return f"bound to {claim.spec.volume_name}, {claim.status.capacity.get('storage', '')}".rstrip(", ")


async def _explain_from_events(scene: ClusterState, claim: PersistentVolumeClaim) -> Explanation:
    """Who may not read volumes and classes cannot know what the binder sees, only what it has said."""
    if claim.status.phase == "Bound":
        return Explanation((done_step(f"bound to {claim.spec.volume_name}", BINDER),))
    heard = await scene.find_events(claim)
    why = heard[0].message if heard else "nothing is told about it, and volumes and classes may not be read"
    details = [scene.describe_event(heard[0])] if heard else []
    created = parse_time(claim.metadata.creation_timestamp)
    return Explanation((waiting_step("get a volume", BINDER, why, since=created, details=details),))


# --- getting a volume


async def _explain_binding(scene: ClusterState, claim: PersistentVolumeClaim, binder: Binder) -> Explanation:
    steps = list(binder.plan(binder.view_claim(claim)))
    why = next((step.why for step in steps if isinstance(step, Wait)), "")
    created = parse_time(claim.metadata.creation_timestamp)
    storage_class = binder.classes.get(claim_class(claim) or "")
    if not why:
        acts = [step for step in steps if not isinstance(step, (Wait, RecordEvent, Requeue))]
        if not acts:
            return Explanation((done_step(f"bound to {claim.spec.volume_name}", BINDER),))
        return _explain_pending_writes(scene, claim, acts)
    if storage_class is not None and why == binding.AWAITS_OUTSIDE.format(
        classes.driver_name(storage_class.provisioner)
    ):
        return await _explain_provisioning(scene, claim, storage_class)
    step = waiting_step("get a volume", BINDER, why, since=created)
    step = scene.roles.add_times(step, Binder.name, f"pvc/{claim.key}")
    if why == binding.NO_CONSUMER:
        assert storage_class is not None
        asked = waiting_step(
            "be used by a pod",
            "you",
            f"no pod uses it yet, and its class {storage_class.name} makes volumes for pods only "
            f"({classes.FIRST_CONSUMER})",
            since=created,
        )
        return Explanation(
            (asked, later_step("make the volume where the pod goes", storage_class.provisioner))
        )
    if waits_for_pod(claim, binder):
        return await _explain_waiting_for_pods(scene, claim, binder, step)
    return Explanation(
        (_add_details(step, _candidates(claim, binder)),),
        tuple(_binding_advice(claim, binder, storage_class)),
    )


def _add_details(step: ExplanationStep, details: Iterable[str]) -> ExplanationStep:
    """The step with its volumes one by one; the sentence then only says how many they are."""
    listed = tuple(details)
    if not listed:
        return step
    first = step.why.partition(": ")[0] if len(listed) > 1 else step.why
    return waiting_step(step.what, step.who, first, since=step.since, until=step.until, details=listed)


def _candidates(claim: PersistentVolumeClaim, binder: Binder) -> Iterator[str]:
    """Of each volume that nobody has, why it is not the claim's."""
    if claim.spec.volume_name:
        return
    free = sorted((v for v in binder.volumes.all() if is_free_for(v, claim)), key=lambda v: v.name)
    for volume in free[:MANY]:
        yield f"{volume.name}: {matching.refusal(volume, claim) or 'fits'}"
    if len(free) > MANY:
        yield f"and {len(free) - MANY} more"


def _binding_advice(
    claim: PersistentVolumeClaim, binder: Binder, storage_class: StorageClass | None
) -> Iterator[str]:
    wanted, size = claim_class(claim), sizes.format_size(sizes.requested_size(claim))
    known = ", ".join(sorted(c.name for c in binder.classes.all()))
    if claim.status.phase == "Lost":
        yield f"restore the data of volume {claim.spec.volume_name or '(unknown)'} from a backup"
        yield f"kubectl delete pvc -n {claim.namespace} {claim.name}, and create it again"
    elif claim.spec.volume_name:
        yield f"kubectl describe pv {claim.spec.volume_name}"
    elif wanted and storage_class is None:
        yield f"create StorageClass {wanted}, or use one that exists: {known or '(there is none)'}"
    else:
        modes = ", ".join(claim.spec.access_modes)
        yield f"create a PersistentVolume of at least {size} with {modes} and storageClassName {wanted!r}"
        if not wanted and known:
            yield f"or create the claim again with a storageClassName: {known}"


def _explain_pending_writes(
    scene: ClusterState, claim: PersistentVolumeClaim, acts: Sequence[object]
) -> Explanation:
    """The binder has something to do; it does it at once, unless it is not there or is refused."""
    first = acts[0]
    what = f"bind to {first.volume.name}" if isinstance(first, SetClaimRef) else "be bound"
    if isinstance(first, SetProvisioner):
        what = f"be handed to {first.driver}"
    notes = scene.roles.of(Binder.name, f"pvc/{claim.key}")
    why = notes[0].why if notes and notes[0].why else "the binder has it to do, and has not done it yet"
    since = notes[0].since if notes else parse_time(claim.metadata.creation_timestamp)
    until = notes[0].next_try if notes else None
    step = waiting_step(what, BINDER, why, since=since, until=until)
    return Explanation(
        (step,), ("look again in a second; if it stays so, see whether kube-controller-manager runs",)
    )


# --- a volume that is being made


async def _explain_provisioning(
    scene: ClusterState, claim: PersistentVolumeClaim, storage_class: StorageClass
) -> Explanation:
    driver = classes.driver_name(storage_class.provisioner)
    node = claim.metadata.annotations.get(SELECTED_NODE, "")
    steps = [done_step(f"class {storage_class.name} asks {driver}", BINDER)]
    if node:
        steps.append(done_step(f"to be made for {node}", "scheduler"))
    heard = await scene.find_events(claim, *PROVISIONING)
    error = _last_error(scene, claim, heard)
    beside = await sidecars.find_sidecar(scene, "csi-provisioner", driver)
    why = f"{driver} cannot make it: {error}" if error else f"{driver} has not made the volume yet"
    step = waiting_step(
        "make the volume (CreateVolume)",
        f"csi-provisioner of {driver}",
        why,
        since=parse_time(claim.metadata.creation_timestamp),
        details=(*_describe_repeats(scene, heard), *beside.facts),
    )
    for note in scene.roles.of("csi-provisioner", claim.key):
        step = structs.replace(step, since=note.since, until=note.next_try, ends="tried again")
    return Explanation((*steps, step, later_step("bind", BINDER)), beside.advice)


def _last_error(scene: ClusterState, claim: PersistentVolumeClaim, heard: list[EventRecord]) -> str:
    """What the driver said last: as its sidecar knows it, or as it told it in an event."""
    notes = [n.why for n in scene.roles.of("csi-provisioner", claim.key) if n.why]
    prefix = f'failed to provision volume with StorageClass "{claim_class(claim) or ""}": '
    return notes[0] if notes else heard[0].message.removeprefix(prefix) if heard else ""


def _describe_repeats(scene: ClusterState, heard: list[EventRecord]) -> list[str]:
    return [scene.describe_event(heard[0])] if heard else []


def waits_for_pod(claim: PersistentVolumeClaim, binder: Binder) -> bool:
    """A volume is made for it when the scheduler has chosen a node, and not before."""
    storage_class = binder.classes.get(claim_class(claim) or "")
    waits_for_one = classes.is_delayed(storage_class) and SELECTED_NODE not in claim.metadata.annotations
    return waits_for_one and not claim.spec.volume_name and not claim.is_deleting


async def _explain_waiting_for_pods(
    scene: ClusterState, claim: PersistentVolumeClaim, binder: Binder, step: ExplanationStep
) -> Explanation:
    """The claim waits for pods that have no node: their reason is its reason."""
    from volplane.explain import scheduling  # which asks about claims in turn

    told = Explanation()
    for pod in binder.users[claim.key]:
        if not pod.spec.node_name and not pods.has_ended(pod):
            told += await scheduling.story(scene, pod, above=claim)
    cause = told.first_wait
    why = f"{step.why}: {cause.why}" if cause is not None else step.why
    first = structs.replace(step, why=why)
    return (
        Explanation((first,))
        + told
        + Explanation((later_step("make the volume where the pod goes", "its driver"),))
    )


# --- a volume that is to grow


async def _explain_resize(scene: ClusterState, claim: PersistentVolumeClaim, binder: Binder) -> Explanation:
    wanted, has = sizes.requested_size(claim), resizing.actual_size(claim)
    if wanted <= has:
        return Explanation()
    volume = binder.volumes.get(claim.spec.volume_name)
    state = resizing.state(claim)
    driver = volume.spec.csi.driver if volume is not None and volume.spec.csi is not None else "its driver"
    heard = await scene.find_events(claim, *RESIZING)
    conditions = {c.type: c for c in claim.status.conditions if c.status == "True"}
    begun = parse_time(next((c.last_transition_time for c in claim.status.conditions), ""))
    grow = f"grow from {sizes.format_size(has)} to {sizes.format_size(wanted)}"
    control, node = f"csi-resizer of {driver}", "kubelet"
    told = [f"{c.type}: {c.message}" for c in conditions.values() if c.message]
    if state.is_with_node or resizing.FILE_SYSTEM_PENDING in conditions:
        users = [p.name for p in binder.users[claim.key] if p.spec.node_name and not pods.has_ended(p)]
        on_node = f"the disk has grown; its file system follows on the node of {', '.join(users)}"
        why = on_node if users else "the disk has grown; its file system grows when a pod mounts it"
        step = waiting_step(f"{grow}: file system", node, why, since=begun, details=told)
        advice = () if users else ("start a pod that uses the claim",)
        return Explanation((done_step(f"{grow}: disk", control), step), advice)
    failed = heard[0].message if heard else ""
    if state in (Growth.CONTROLLER_INFEASIBLE, Growth.NODE_INFEASIBLE):
        why = f"{driver} says that it cannot be done" + (f": {failed}" if failed else "")
        return Explanation(
            (
                waiting_step(
                    grow,
                    control if state is Growth.CONTROLLER_INFEASIBLE else node,
                    why,
                    since=begun,
                    details=told,
                ),
            ),
            (f"ask for less: anything above {sizes.format_size(has)} that {driver} can do is taken",),
        )
    beside = await sidecars.find_sidecar(scene, "csi-resizer", driver)
    why = f"{driver} has not grown it: {failed}" if failed else f"{driver} has not grown the disk yet"
    step = waiting_step(f"{grow}: disk", control, why, since=begun, details=(*told, *beside.facts))
    for note in scene.roles.of("csi-resizer", claim.key):
        why = f"{driver}: {note.why}" if note.why else why
        step = structs.replace(step, why=why, since=note.since, until=note.next_try, ends="tried again")
    todo = (*_resize_advice(claim, binder), *beside.advice)
    return Explanation((step, later_step(f"{grow}: file system", node)), todo)


def _resize_advice(claim: PersistentVolumeClaim, binder: Binder) -> Iterator[str]:
    storage_class = binder.classes.get(claim_class(claim) or "")
    if storage_class is not None and not storage_class.allow_volume_expansion:
        yield f"StorageClass {storage_class.name} does not have allowVolumeExpansion: true"


# --- going away


async def explain_deletion(scene: ClusterState, claim: PersistentVolumeClaim) -> Explanation:
    binder = await scene.load_controller(Binder)
    users: list[Pod] = binder.users[claim.key]
    since = parse_time(claim.metadata.deletion_timestamp)
    steps: list[ExplanationStep] = []
    advice: list[str] = []
    for step in protection.plan_claim(claim, users, proven=True):
        if isinstance(step, Wait):
            held = [pod for pod in users if protection.uses_claim(pod, claim)]
            shown = [f"pod {pod.key} on {pod.spec.node_name}: {_phase(pod)}" for pod in held]
            steps.append(waiting_step("be deleted", "claim protection", step.why, since=since, details=shown))
            advice += [
                f"kubectl delete pod -n {pod.namespace} {pod.name}" for pod in held if not pod.is_deleting
            ]
            advice += [
                f"volplane explain pod/{pod.name} -n {pod.namespace}" for pod in held if pod.is_deleting
            ]
    others = finalizers.finalizer_steps(claim, since, handled=(CLAIM_PROTECTION,) if steps else ())
    return Explanation((*steps, *others), tuple(advice))


def _phase(pod: Pod) -> str:
    return "Terminating" if pod.is_deleting else pod.status.phase or "Pending"


def volume_of(claim: PersistentVolumeClaim, binder: Binder) -> PersistentVolume | None:
    return binder.volumes.get(claim.spec.volume_name) if claim.spec.volume_name else None
