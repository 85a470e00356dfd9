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
from volplane.explain.answer import Step, Story, done, later, waits
from volplane.explain.scene import Heard, Scene, moment
from volplane.rules import classes, matching, pods, resizing, sizes
from volplane.rules.binding import CLAIM_PROTECTION, SELECTED_NODE, claim_class, is_free_for
from volplane.rules.resizing import State as Growth
from volplane.rules.steps import Requeue, Say, Wait

BINDER = "persistent volume binder"
PROVISIONING = ("ProvisioningFailed", "ProvisioningTimeout")
RESIZING = ("VolumeResizeFailed", "FileSystemResizeFailed")
MANY = 8  # candidates that are named; of more only the number


async def story(scene: Scene, claim: PersistentVolumeClaim) -> Story:
    if claim.is_deleting:
        return await leaving(scene, claim)
    if await scene.lacks(PersistentVolume, StorageClass):
        return await _by_hearsay(scene, claim)
    binder = await scene.seen_by(Binder)
    told = await _binding(scene, claim, binder)
    if told.waits is None and claim.status.phase == "Bound":
        told += await _growing(scene, claim, binder)
    return told


def rest(claim: PersistentVolumeClaim) -> str:
    return f"bound to {claim.spec.volume_name}, {claim.status.capacity.get('storage', '')}".rstrip(", ")


async def _by_hearsay(scene: Scene, claim: PersistentVolumeClaim) -> Story:
    """Who may not read volumes and classes cannot know what the binder sees, only what it has said."""
    if claim.status.phase == "Bound":
        return Story((done(f"bound to {claim.spec.volume_name}", BINDER),))
    heard = await scene.heard(claim)
    why = heard[0].message if heard else "nothing is told about it, and volumes and classes may not be read"
    details = [scene.told(heard[0])] if heard else []
    created = moment(claim.metadata.creation_timestamp)
    return Story((waits("get a volume", BINDER, why, since=created, details=details),))


# --- getting a volume


async def _binding(scene: Scene, claim: PersistentVolumeClaim, binder: Binder) -> Story:
    steps = list(binder.plan(binder.view_claim(claim)))
    why = next((step.why for step in steps if isinstance(step, Wait)), "")
    created = moment(claim.metadata.creation_timestamp)
    storage_class = binder.classes.get(claim_class(claim) or "")
    if not why:
        acts = [step for step in steps if not isinstance(step, (Wait, Say, Requeue))]
        if not acts:
            return Story((done(f"bound to {claim.spec.volume_name}", BINDER),))
        return _unfinished(scene, claim, acts)
    if storage_class is not None and why == binding.AWAITS_OUTSIDE.format(
        classes.driver(storage_class.provisioner)
    ):
        return await _provisioning(scene, claim, storage_class)
    step = waits("get a volume", BINDER, why, since=created)
    step = scene.roles.timed(step, Binder.name, f"pvc/{claim.key}")
    if why == binding.NO_CONSUMER:
        assert storage_class is not None
        asked = waits(
            "be used by a pod",
            "you",
            f"no pod uses it yet, and its class {storage_class.name} makes volumes for pods only "
            f"({classes.FIRST_CONSUMER})",
            since=created,
        )
        return Story((asked, later("make the volume where the pod goes", storage_class.provisioner)))
    if awaits_pods(claim, binder):
        return await _unscheduled(scene, claim, binder, step)
    return Story((_with(step, _candidates(claim, binder)),), tuple(_get_one(claim, binder, storage_class)))


def _with(step: Step, details: Iterable[str]) -> Step:
    """The step with its volumes one by one; the sentence then only says how many they are."""
    listed = tuple(details)
    if not listed:
        return step
    first = step.why.partition(": ")[0] if len(listed) > 1 else step.why
    return waits(step.what, step.who, first, since=step.since, until=step.until, details=listed)


def _candidates(claim: PersistentVolumeClaim, binder: Binder) -> Iterator[str]:
    """Of each volume that nobody has, why it is not the claim's."""
    if claim.spec.volume_name:
        return
    free = sorted((v for v in binder.volumes.all() if is_free_for(v, claim)), key=lambda v: v.name)
    for volume in free[:MANY]:
        yield f"{volume.name}: {matching.refusal(volume, claim) or 'fits'}"
    if len(free) > MANY:
        yield f"and {len(free) - MANY} more"


def _get_one(
    claim: PersistentVolumeClaim, binder: Binder, storage_class: StorageClass | None
) -> Iterator[str]:
    wanted, size = claim_class(claim), sizes.text(sizes.requested(claim))
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


def _unfinished(scene: Scene, claim: PersistentVolumeClaim, acts: Sequence[object]) -> Story:
    """The binder has something to do; it does it at once, unless it is not there or is refused."""
    first = acts[0]
    what = f"bind to {first.volume.name}" if isinstance(first, SetClaimRef) else "be bound"
    if isinstance(first, SetProvisioner):
        what = f"be handed to {first.driver}"
    notes = scene.roles.of(Binder.name, f"pvc/{claim.key}")
    why = notes[0].why if notes and notes[0].why else "the binder has it to do, and has not done it yet"
    since = notes[0].since if notes else moment(claim.metadata.creation_timestamp)
    until = notes[0].next_try if notes else None
    step = waits(what, BINDER, why, since=since, until=until)
    return Story(
        (step,), ("look again in a second; if it stays so, see whether kube-controller-manager runs",)
    )


# --- a volume that is being made


async def _provisioning(scene: Scene, claim: PersistentVolumeClaim, storage_class: StorageClass) -> Story:
    driver = classes.driver(storage_class.provisioner)
    node = claim.metadata.annotations.get(SELECTED_NODE, "")
    steps = [done(f"class {storage_class.name} asks {driver}", BINDER)]
    if node:
        steps.append(done(f"to be made for {node}", "scheduler"))
    heard = await scene.heard(claim, *PROVISIONING)
    error = _error(scene, claim, heard)
    beside = await sidecars.look(scene, "csi-provisioner", driver)
    why = f"{driver} cannot make it: {error}" if error else f"{driver} has not made the volume yet"
    step = waits(
        "make the volume (CreateVolume)",
        f"csi-provisioner of {driver}",
        why,
        since=moment(claim.metadata.creation_timestamp),
        details=(*_repeats(scene, heard), *beside.facts),
    )
    for note in scene.roles.of("csi-provisioner", claim.key):
        step = structs.replace(step, since=note.since, until=note.next_try, ends="tried again")
    return Story((*steps, step, later("bind", BINDER)), beside.advice)


def _error(scene: Scene, claim: PersistentVolumeClaim, heard: list[Heard]) -> str:
    """What the driver said last: as its sidecar knows it, or as it told it in an event."""
    notes = [n.why for n in scene.roles.of("csi-provisioner", claim.key) if n.why]
    prefix = f'failed to provision volume with StorageClass "{claim_class(claim) or ""}": '
    return notes[0] if notes else heard[0].message.removeprefix(prefix) if heard else ""


def _repeats(scene: Scene, heard: list[Heard]) -> list[str]:
    return [scene.told(heard[0])] if heard else []


def awaits_pods(claim: PersistentVolumeClaim, binder: Binder) -> bool:
    """A volume is made for it when the scheduler has chosen a node, and not before."""
    storage_class = binder.classes.get(claim_class(claim) or "")
    waits_for_one = classes.is_delayed(storage_class) and SELECTED_NODE not in claim.metadata.annotations
    return waits_for_one and not claim.spec.volume_name and not claim.is_deleting


async def _unscheduled(scene: Scene, claim: PersistentVolumeClaim, binder: Binder, step: Step) -> Story:
    """The claim waits for pods that have no node: their reason is its reason."""
    from volplane.explain import scheduling  # which asks about claims in turn

    told = Story()
    for pod in binder.users[claim.key]:
        if not pod.spec.node_name and not pods.has_ended(pod):
            told += await scheduling.story(scene, pod, above=claim)
    cause = told.waits
    why = f"{step.why}: {cause.why}" if cause is not None else step.why
    first = structs.replace(step, why=why)
    return Story((first,)) + told + Story((later("make the volume where the pod goes", "its driver"),))


# --- a volume that is to grow


async def _growing(scene: Scene, claim: PersistentVolumeClaim, binder: Binder) -> Story:
    wanted, has = sizes.requested(claim), resizing.actual(claim)
    if wanted <= has:
        return Story()
    volume = binder.volumes.get(claim.spec.volume_name)
    state = resizing.state(claim)
    driver = volume.spec.csi.driver if volume is not None and volume.spec.csi is not None else "its driver"
    heard = await scene.heard(claim, *RESIZING)
    conditions = {c.type: c for c in claim.status.conditions if c.status == "True"}
    begun = moment(next((c.last_transition_time for c in claim.status.conditions), ""))
    grow = f"grow from {sizes.text(has)} to {sizes.text(wanted)}"
    control, node = f"csi-resizer of {driver}", "kubelet"
    told = [f"{c.type}: {c.message}" for c in conditions.values() if c.message]
    if state.is_with_node or resizing.FILE_SYSTEM_PENDING in conditions:
        users = [p.name for p in binder.users[claim.key] if p.spec.node_name and not pods.has_ended(p)]
        on_node = f"the disk has grown; its file system follows on the node of {', '.join(users)}"
        why = on_node if users else "the disk has grown; its file system grows when a pod mounts it"
        step = waits(f"{grow}: file system", node, why, since=begun, details=told)
        advice = () if users else ("start a pod that uses the claim",)
        return Story((done(f"{grow}: disk", control), step), advice)
    failed = heard[0].message if heard else ""
    if state in (Growth.CONTROLLER_INFEASIBLE, Growth.NODE_INFEASIBLE):
        why = f"{driver} says that it cannot be done" + (f": {failed}" if failed else "")
        return Story(
            (
                waits(
                    grow,
                    control if state is Growth.CONTROLLER_INFEASIBLE else node,
                    why,
                    since=begun,
                    details=told,
                ),
            ),
            (f"ask for less: anything above {sizes.text(has)} that {driver} can do is taken",),
        )
    beside = await sidecars.look(scene, "csi-resizer", driver)
    why = f"{driver} has not grown it: {failed}" if failed else f"{driver} has not grown the disk yet"
    step = waits(f"{grow}: disk", control, why, since=begun, details=(*told, *beside.facts))
    for note in scene.roles.of("csi-resizer", claim.key):
        why = f"{driver}: {note.why}" if note.why else why
        step = structs.replace(step, why=why, since=note.since, until=note.next_try, ends="tried again")
    todo = (*_growable(claim, binder), *beside.advice)
    return Story((step, later(f"{grow}: file system", node)), todo)


def _growable(claim: PersistentVolumeClaim, binder: Binder) -> Iterator[str]:
    storage_class = binder.classes.get(claim_class(claim) or "")
    if storage_class is not None and not storage_class.allow_volume_expansion:
        yield f"StorageClass {storage_class.name} does not have allowVolumeExpansion: true"


# --- going away


async def leaving(scene: Scene, claim: PersistentVolumeClaim) -> Story:
    binder = await scene.seen_by(Binder)
    users: list[Pod] = binder.users[claim.key]
    since = moment(claim.metadata.deletion_timestamp)
    steps: list[Step] = []
    advice: list[str] = []
    for step in protection.plan_claim(claim, users, proven=True):
        if isinstance(step, Wait):
            held = [pod for pod in users if protection.holds(pod, claim)]
            shown = [f"pod {pod.key} on {pod.spec.node_name}: {_phase(pod)}" for pod in held]
            steps.append(waits("be deleted", "claim protection", step.why, since=since, details=shown))
            advice += [
                f"kubectl delete pod -n {pod.namespace} {pod.name}" for pod in held if not pod.is_deleting
            ]
            advice += [
                f"volplane explain pod/{pod.name} -n {pod.namespace}" for pod in held if pod.is_deleting
            ]
    others = finalizers.steps(claim, since, handled=(CLAIM_PROTECTION,) if steps else ())
    return Story((*steps, *others), tuple(advice))


def _phase(pod: Pod) -> str:
    return "Terminating" if pod.is_deleting else pod.status.phase or "Pending"


def volume_of(claim: PersistentVolumeClaim, binder: Binder) -> PersistentVolume | None:
    return binder.volumes.get(claim.spec.volume_name) if claim.spec.volume_name else None
