"""A claim: waits for its first pod, a matching volume, its driver, an expansion, or its deletion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from volplane.api.annotations import SELECTED_NODE_ANNOTATION, STORAGE_RESIZER_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.finalizers import PVC_PROTECTION_FINALIZER
from volplane.api.storage import StorageClass
from volplane.controllers.binder.controller import Binder
from volplane.controllers.binder.steps import SetClaimRef, SetProvisioner
from volplane.controllers.protection import plan as protection
from volplane.explain import finalizers, flexvolumes, sidecars
from volplane.explain.cluster_state import ClusterState, EventRecord, parse_time
from volplane.explain.result import Explanation, ExplanationStep, done_step, later_step, waiting_step
from volplane.rules import classes, matching, pods, resizing, sizes
from volplane.rules.binding import claim_class, is_free_for
from volplane.rules.csi_translation import find_csi_source
from volplane.rules.in_tree import is_replaced
from volplane.rules.resizing import ResizeState
from volplane.rules.steps import RecordEvent, Requeue
from volplane.rules.volume_sources import source_name
from volplane.rules.waits import Wait, WaitReason
from volplane.sidecars.resizer.expand import plan as resizer

BINDER = "persistent volume binder"
PROVISIONER = "csi-provisioner"
RESIZER = "csi-resizer"
PROVISIONING = ("ProvisioningFailed", "ProvisioningTimeout")
RESIZING = ("VolumeResizeFailed", "FileSystemResizeFailed")
POD_REASONS = (WaitReason.FIRST_CONSUMER, WaitReason.POD_NOT_SCHEDULED)
NO_PLUGIN = "waiting for an external controller to expand this PVC"  # as in the controller's event
MAX_CANDIDATES = 8  # volumes listed one by one; of more only the number


async def explain(state: ClusterState, claim: PersistentVolumeClaim) -> Explanation:
    if claim.is_deleting:
        return await explain_deletion(state, claim)
    if await state.cannot_read(PersistentVolume, StorageClass):
        return await _explain_from_events(state, claim)
    binder = await state.load_controller(Binder)
    explanation = await _explain_binding(state, claim, binder)
    if explanation.first_wait is None and claim.status.phase == "Bound":
        explanation += await _explain_resize(state, claim, binder)
    return explanation


def summarize(claim: PersistentVolumeClaim) -> str:
    return f"bound to {claim.spec.volume_name}, {claim.status.capacity.get('storage', '')}".rstrip(", ")


async def _explain_from_events(state: ClusterState, claim: PersistentVolumeClaim) -> Explanation:
    """Without permission to read volumes and classes, only the binder's events are left."""
    if claim.status.phase == "Bound":
        return Explanation((done_step(f"bound to {claim.spec.volume_name}", BINDER),))
    events = await state.find_events(claim)
    why = events[0].message if events else "no events; volumes and storage classes may not be read"
    details = [state.describe_event(events[0])] if events else []
    created = parse_time(claim.metadata.creation_timestamp)
    return Explanation((waiting_step("bind to a volume", BINDER, why, since=created, details=details),))


# --- binding


def waits_for_pod(claim: PersistentVolumeClaim, binder: Binder) -> bool:
    """Whether the volume is provisioned only after the scheduler has selected a node for a pod."""
    waits = (step for step in binder.plan(binder.view_claim(claim)) if isinstance(step, Wait))
    return not claim.is_deleting and any(wait.reason in POD_REASONS for wait in waits)


async def _explain_binding(state: ClusterState, claim: PersistentVolumeClaim, binder: Binder) -> Explanation:
    steps = list(binder.plan(binder.view_claim(claim)))
    wait = next((step for step in steps if isinstance(step, Wait)), None)
    if wait is None:
        writes = [step for step in steps if not isinstance(step, (Wait, RecordEvent, Requeue))]
        if not writes:
            return Explanation((done_step(f"bound to {claim.spec.volume_name}", BINDER),))
        return _explain_pending_writes(state, claim, writes)
    created = parse_time(claim.metadata.creation_timestamp)
    storage_class = binder.classes.get(claim_class(claim) or "")
    step = waiting_step("bind to a volume", BINDER, wait, since=created)
    step = state.roles.add_times(step, Binder.name, f"pvc/{claim.key}", wait)
    match wait.reason:
        case WaitReason.EXTERNAL_PROVISIONER if storage_class is not None:
            return await _explain_provisioning(state, claim, storage_class)
        case WaitReason.FIRST_CONSUMER if storage_class is not None:
            why = (
                f"no pod uses the claim yet, and StorageClass {storage_class.name} provisions volumes only "
                f"for pods (volumeBindingMode {classes.FIRST_CONSUMER})"
            )
            used = waiting_step("be used by a pod", "you", why, since=created)
            provision = later_step("provision the volume for the pod's node", storage_class.provisioner)
            advice = ("create a pod that uses the claim",)
            return Explanation((structs.replace(used, reason=wait.reason), provision), advice)
        case WaitReason.POD_NOT_SCHEDULED:
            return await _explain_waiting_for_pods(state, claim, binder, step)
    listed = _add_details(step, wait, _candidates(claim, binder))
    return Explanation((listed,), tuple(_binding_advice(claim, binder, storage_class)))


def _add_details(step: ExplanationStep, wait: Wait, details: Iterable[str]) -> ExplanationStep:
    """The step with one line for each volume; the sentence does not repeat them."""
    lines = tuple(details)
    why = structs.replace(wait, message="").text if len(lines) > 1 else ""
    return structs.replace(step, why=why or step.why, details=lines)


def _candidates(claim: PersistentVolumeClaim, binder: Binder) -> Iterator[str]:
    """Each volume that is free, and why it is not bound to the claim."""
    if claim.spec.volume_name:
        return
    free = sorted((v for v in binder.volumes.all() if is_free_for(v, claim)), key=lambda v: v.name)
    for volume in free[:MAX_CANDIDATES]:
        yield f"{volume.name}: {matching.refusal(volume, claim) or 'fits'}"
    if len(free) > MAX_CANDIDATES:
        yield f"and {len(free) - MAX_CANDIDATES} more"


def _binding_advice(
    claim: PersistentVolumeClaim, binder: Binder, storage_class: StorageClass | None
) -> Iterator[str]:
    class_name, size = claim_class(claim), sizes.format_size(sizes.requested_size(claim))
    known = ", ".join(sorted(c.name for c in binder.classes.all()))
    if claim.status.phase == "Lost":
        yield f"restore the data of volume {claim.spec.volume_name or '(unknown)'} from a backup"
        yield f"kubectl delete pvc -n {claim.namespace} {claim.name}, and create it again"
    elif claim.spec.volume_name:
        yield f"kubectl describe pv {claim.spec.volume_name}"
    elif class_name and storage_class is None:
        yield f"create StorageClass {class_name}, or use an existing one: {known or '(there is none)'}"
    else:
        modes = ", ".join(claim.spec.access_modes)
        yield f"create a PersistentVolume of at least {size} with {modes} and storageClassName {class_name!r}"
        if not class_name and known:
            yield f"or create the claim again with a storageClassName: {known}"


def _explain_pending_writes(
    state: ClusterState, claim: PersistentVolumeClaim, writes: Sequence[object]
) -> Explanation:
    """The binder writes at once, unless it is down or its write fails."""
    first = writes[0]
    what = f"bind to {first.volume.name}" if isinstance(first, SetClaimRef) else "be bound"
    if isinstance(first, SetProvisioner):
        what = f"ask {first.driver} for a volume"
    reports = state.roles.find(Binder.name, f"pvc/{claim.key}")
    why = reports[0].why if reports else "the binder has not written this step yet"
    since = reports[0].since if reports else parse_time(claim.metadata.creation_timestamp)
    until = reports[0].next_try if reports else None
    step = waiting_step(what, BINDER, why, since=since, until=until)
    return Explanation((step,), (check_again("kube-controller-manager"),))


def check_again(role: str) -> str:
    """The advice for a step that takes milliseconds in a healthy cluster."""
    return f"run this command again in a second; if nothing has changed, check that {role} is running"


# --- provisioning


async def _explain_provisioning(
    state: ClusterState, claim: PersistentVolumeClaim, storage_class: StorageClass
) -> Explanation:
    driver = classes.driver_name(storage_class.provisioner)
    node = claim.metadata.annotations.get(SELECTED_NODE_ANNOTATION, "")
    steps = [done_step(f"StorageClass {storage_class.name} names {driver}", BINDER)]
    if node:
        steps.append(done_step(f"select node {node}", "scheduler"))
    events = await state.find_events(claim, *PROVISIONING)
    error = _last_error(state, claim, events)
    sidecar = await sidecars.find_sidecar(state, PROVISIONER, driver)
    why = (
        f"{driver} cannot create the volume: {error}" if error else f"{driver} has not created the volume yet"
    )
    step = waiting_step(
        "create the volume (CreateVolume)",
        f"{PROVISIONER} of {driver}",
        why,
        since=parse_time(claim.metadata.creation_timestamp),
        details=(*_describe_repeats(state, events), *sidecar.facts),
    )
    for report in state.roles.find(PROVISIONER, claim.key):
        step = structs.replace(step, since=report.since, until=report.next_try, ends="retried")
    reason = structs.replace(step, reason=WaitReason.EXTERNAL_PROVISIONER)
    return Explanation((*steps, reason, later_step("bind", BINDER)), sidecar.advice)


def _last_error(state: ClusterState, claim: PersistentVolumeClaim, events: list[EventRecord]) -> str:
    """The driver's last error: from the provisioner's wait report, else from its event."""
    reported = next((report.why for report in state.roles.find(PROVISIONER, claim.key) if report.why), "")
    prefix = f'failed to provision volume with StorageClass "{claim_class(claim) or ""}": '
    return reported or (events[0].message.removeprefix(prefix) if events else "")


def _describe_repeats(state: ClusterState, events: list[EventRecord]) -> list[str]:
    return [state.describe_event(events[0])] if events else []


async def _explain_waiting_for_pods(
    state: ClusterState, claim: PersistentVolumeClaim, binder: Binder, step: ExplanationStep
) -> Explanation:
    """The claim waits for pods that have no node: it waits for whatever they wait for."""
    from volplane.explain import scheduling  # which explains claims in turn

    explanation = Explanation()
    for pod in binder.users[claim.key]:
        if not pod.spec.node_name and not pods.has_ended(pod):
            explanation += await scheduling.explain(state, pod, above=claim)
    cause = explanation.first_wait
    why = f"{step.why}: {cause.why}" if cause is not None else step.why
    first = Explanation((structs.replace(step, why=why),))
    provision = later_step("provision the volume for the pod's node", "its driver")
    return first + explanation + Explanation((provision,))


# --- expansion


async def _explain_resize(state: ClusterState, claim: PersistentVolumeClaim, binder: Binder) -> Explanation:
    """The resizer's own plan for the claim."""
    if sizes.requested_size(claim) <= resizing.actual_size(claim):
        return Explanation()
    size, requested = (
        sizes.format_size(s) for s in (resizing.actual_size(claim), sizes.requested_size(claim))
    )
    what = f"expand from {size} to {requested}"
    volume = binder.volumes.get(claim.spec.volume_name)
    if volume is not None and volume.spec.flex_volume is not None:
        driver = volume.spec.flex_volume.driver
        found = await flexvolumes.explain_expansion(state, claim, volume, what)
        if isinstance(found, Wait):
            return await _explain_node_resize(state, claim, binder, what, driver, found)
        return found
    if volume is not None and volume.spec.csi is None and not is_replaced(volume):
        return _explain_no_resizer(volume, what)
    csi = find_csi_source(volume)
    driver = csi.driver if csi is not None else claim.metadata.annotations.get(STORAGE_RESIZER_ANNOTATION, "")
    steps = list(resizer.plan(claim, volume, resizer.ResizerDriverInfo(driver), resizer.LastExpansion()))
    wait = next((step for step in steps if isinstance(step, Wait)), None)
    if wait is None and not any(isinstance(step, resizer.ControllerExpand) for step in steps):
        return Explanation()
    if wait is not None and wait.reason is WaitReason.NODE_RESIZE:
        return await _explain_node_resize(state, claim, binder, what, driver, wait)
    if resizing.state(claim) in (ResizeState.CONTROLLER_INFEASIBLE, ResizeState.NODE_INFEASIBLE):
        return await _explain_infeasible(state, claim, what, driver)
    return await _explain_controller_resize(state, claim, binder, what, driver)


def _explain_no_resizer(volume: PersistentVolume, what: str) -> Explanation:
    """No plugin expands volumes of this type, and no sidecar does."""
    kind = source_name(volume)
    why = f"{NO_PLUGIN}: no volume plugin expands {kind} volumes"
    step = waiting_step(what, "an external controller", why)
    return Explanation(
        (step,), (f"copy the data to a larger volume: {kind} volumes cannot be expanded here",)
    )


def _conditions(claim: PersistentVolumeClaim) -> list[str]:
    return [f"{c.type}: {c.message}" for c in claim.status.conditions if c.status == "True" and c.message]


async def _explain_node_resize(
    state: ClusterState, claim: PersistentVolumeClaim, binder: Binder, what: str, driver: str, wait: Wait
) -> Explanation:
    volume = volume_of(claim, binder)
    users = [p for p in binder.users[claim.key] if p.spec.node_name and not pods.has_ended(p)]
    failures = [event for pod in users for event in await state.find_events(pod, *RESIZING)]
    names = ", ".join(pod.name for pod in users)
    why = "the disk is expanded; its file system is expanded when a pod mounts the volume"
    advice: tuple[str, ...] = ("start a pod that uses the claim",)
    if failures:
        why = f"the disk is expanded, but not its file system, which pod {names} uses: {failures[0].message}"
        advice = tuple(_restart_advice(pod) for pod in users)
    elif users:
        why, advice = f"the disk is expanded; the kubelet expands its file system for pod {names}", ()
    since = parse_time(next((c.last_transition_time for c in claim.status.conditions), ""))
    step = waiting_step(f"{what}: file system", "kubelet", why, since=since, details=_conditions(claim))
    is_flex = volume is not None and volume.spec.flex_volume is not None
    disk = done_step(f"{what}: disk", f"FlexVolume driver {driver}" if is_flex else f"{RESIZER} of {driver}")
    return Explanation((disk, structs.replace(step, reason=wait.reason)), advice)


def _restart_advice(pod: Pod) -> str:
    """A kernel may refuse to grow a mounted ext4."""
    return (
        "restart the pod, so that the file system is expanded before it is mounted: "
        f"kubectl delete pod -n {pod.namespace} {pod.name}"
    )


async def _explain_infeasible(
    state: ClusterState, claim: PersistentVolumeClaim, what: str, driver: str
) -> Explanation:
    events = await state.find_events(claim, *RESIZING)
    is_node = resizing.state(claim) is ResizeState.NODE_INFEASIBLE
    why = f"{driver} cannot expand the volume to this size" + (f": {events[0].message}" if events else "")
    since = parse_time(next((c.last_transition_time for c in claim.status.conditions), ""))
    who = "kubelet" if is_node else f"{RESIZER} of {driver}"
    step = waiting_step(what, who, why, since=since, details=_conditions(claim))
    size = sizes.format_size(resizing.actual_size(claim))
    return Explanation((step,), (f"request a smaller size, above {size}, that {driver} supports",))


async def _explain_controller_resize(
    state: ClusterState, claim: PersistentVolumeClaim, binder: Binder, what: str, driver: str
) -> Explanation:
    events = await state.find_events(claim, *RESIZING)
    sidecar = await sidecars.find_sidecar(state, RESIZER, driver)
    why = f"{driver} has not expanded the disk" + (f": {events[0].message}" if events else " yet")
    since = parse_time(next((c.last_transition_time for c in claim.status.conditions), ""))
    details = (*_conditions(claim), *sidecar.facts)
    step = waiting_step(f"{what}: disk", f"{RESIZER} of {driver}", why, since=since, details=details)
    for report in state.roles.find(RESIZER, claim.key):
        why = f"{driver}: {report.why}" if report.why else why
        step = structs.replace(step, why=why, since=report.since, until=report.next_try, ends="retried")
    advice = (*_resize_advice(claim, binder), *sidecar.advice)
    return Explanation((step, later_step(f"{what}: file system", "kubelet")), advice)


def _resize_advice(claim: PersistentVolumeClaim, binder: Binder) -> Iterator[str]:
    storage_class = binder.classes.get(claim_class(claim) or "")
    if storage_class is not None and not storage_class.allow_volume_expansion:
        yield f"StorageClass {storage_class.name} does not have allowVolumeExpansion: true"


# --- deletion


async def explain_deletion(state: ClusterState, claim: PersistentVolumeClaim) -> Explanation:
    binder = await state.load_controller(Binder)
    users: list[Pod] = binder.users[claim.key]
    since = parse_time(claim.metadata.deletion_timestamp)
    steps: list[ExplanationStep] = []
    advice: list[str] = []
    for step in protection.plan_claim(claim, users, proven=True):
        if isinstance(step, Wait):
            holders = [pod for pod in users if pod.key in step.data.pods]
            details = [f"pod {pod.key} on {pod.spec.node_name}: {_phase(pod)}" for pod in holders]
            steps.append(waiting_step("be deleted", "claim protection", step, since=since, details=details))
            advice += [_pod_advice(pod) for pod in holders]
    handled = (PVC_PROTECTION_FINALIZER,) if steps else ()
    others = finalizers.finalizer_steps(claim, since, handled=handled)
    return Explanation((*steps, *others), tuple(advice))


def _pod_advice(pod: Pod) -> str:
    if pod.is_deleting:
        return f"volplane explain pod/{pod.name} -n {pod.namespace}"
    return f"kubectl delete pod -n {pod.namespace} {pod.name}"


def _phase(pod: Pod) -> str:
    return "Terminating" if pod.is_deleting else pod.status.phase or "Pending"


def volume_of(claim: PersistentVolumeClaim, binder: Binder) -> PersistentVolume | None:
    return binder.volumes.get(claim.spec.volume_name) if claim.spec.volume_name else None
