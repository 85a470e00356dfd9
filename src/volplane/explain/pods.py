"""A pod: waits for a node, its volumes, its containers, its node to be ready again, or its deletion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from volplane.api.core import ContainerStatus, Node, PersistentVolume, Pod
from volplane.controllers.attachdetach.facts import unique_name
from volplane.controllers.podgc import plan as garbage
from volplane.controllers.tainteviction import plan as eviction
from volplane.explain import fencing, finalizers, mounting, scheduling
from volplane.explain.cluster_state import (
    ClusterState,
    describe_node_problem,
    format_duration,
    parse_time,
    ready_since,
)
from volplane.explain.result import Explanation, ExplanationStep, done_step, later_step, waiting_step
from volplane.rules import binding, pods
from volplane.rules.taints import NO_EXECUTE
from volplane.rules.waits import Wait
from volplane.rules.workloads import is_ready

# The reasons with which a container waits before anything of it has started.
IDLE = ("ContainerCreating", "PodInitializing", "")


async def explain(state: ClusterState, pod: Pod) -> Explanation:
    if pod.is_deleting:
        return await explain_deletion(state, pod)
    if pods.has_ended(pod):
        return Explanation((done_step(f"ended: {pod.status.phase}{_describe_reason(pod)}", "kubelet"),))
    if not pod.spec.node_name:
        return await scheduling.explain(state, pod) + Explanation((later_step("attach, mount and start"),))
    nodes = await state.cache(Node)
    node = nodes.get(pod.spec.node_name)
    explanation = Explanation((done_step(f"scheduled to {pod.spec.node_name}", "scheduler"),))
    known = not await state.cannot_read(Node)
    if known and (problem := describe_node_problem(node, pod.spec.node_name, state.now)):
        return explanation + _explain_lost_node(state, pod, node, problem)
    if not has_started_containers(pod):
        volumes = await mounting.explain(state, pod, node)
        if volumes.first_wait is not None:
            return explanation + volumes + Explanation((later_step("start its containers", "kubelet"),))
        explanation += volumes
    return explanation + _explain_containers(pod)


def summarize(pod: Pod) -> str:
    if pods.has_ended(pod):
        return f"ended: {pod.status.phase}{_describe_reason(pod)}"
    return f"running on {pod.spec.node_name}, and ready"


def _describe_reason(pod: Pod) -> str:
    reason = ": ".join(filter(None, (pod.status.reason, pod.status.message)))
    return f" ({reason})" if reason else ""


def _statuses(pod: Pod) -> Sequence[ContainerStatus]:
    return (*pod.status.init_container_statuses, *pod.status.container_statuses)


def has_started_containers(pod: Pod) -> bool:
    """Whether a container has run or failed: then the pod's volumes are mounted."""
    return any(
        c.state.running
        or c.state.terminated
        or c.restart_count
        or (c.state.waiting and c.state.waiting.reason not in IDLE)
        for c in _statuses(pod)
    )


# --- containers


def _explain_containers(pod: Pod) -> Explanation:
    steps = list(_unready_containers(pod))
    if steps:
        return Explanation(tuple(steps), tuple(dict.fromkeys(_container_advice(pod))))
    if is_ready(pod):
        return Explanation((done_step("its containers are running and ready", "kubelet"),))
    ready = next((c for c in pod.status.conditions if c.type == "Ready"), None)
    gates = ", ".join(gate.condition_type for gate in pod.spec.readiness_gates)
    message = ready.message if ready is not None else ""
    why = f"readiness gates: {gates}" if gates else message or "its containers have not started yet"
    since = parse_time(ready.last_transition_time if ready else pod.status.start_time)
    return Explanation((waiting_step("be ready", "kubelet", why, since=since),))


def _unready_containers(pod: Pod) -> Iterator[ExplanationStep]:
    who = f"kubelet of {pod.spec.node_name}"
    sidecars = {c.name for c in pod.spec.init_containers if c.restart_policy == "Always"}
    for status in _statuses(pod):
        init = any(status.name == s.name for s in pod.status.init_container_statuses)
        what = f"{'init ' if init else ''}container {status.name}"
        current, last = status.state, status.last_state.terminated
        if current.waiting is not None and (current.waiting.reason not in IDLE or last is not None):
            why = ": ".join(filter(None, (current.waiting.reason, current.waiting.message)))
            ended = f"exit code {last.exit_code} {last.reason}".strip() if last else ""
            details = (f"{ended}, {status.restart_count} restarts",) if last else ()
            since = parse_time(last.finished_at if last else "")
            yield waiting_step(what, who, why, since=since, details=details)
        elif current.running is not None and init and status.name not in sidecars:
            since = parse_time(current.running.started_at)
            yield waiting_step(what, "the container", "running; it has to finish first", since=since)
        elif current.running is not None and not init and not status.ready:
            why = "running, but not ready: its readiness or startup probe has not succeeded"
            yield waiting_step(what, who, why, since=parse_time(current.running.started_at))
        elif (
            current.terminated is not None and (current.terminated.exit_code or not init) and not status.ready
        ):
            why = f"ended with exit code {current.terminated.exit_code} {current.terminated.reason}".strip()
            yield waiting_step(what, who, why, since=parse_time(current.terminated.finished_at))


def _container_advice(pod: Pod) -> Iterator[str]:
    for status in _statuses(pod):
        reason = status.state.waiting.reason if status.state.waiting else ""
        where = f"-n {pod.namespace} {pod.name} -c {status.name}"
        if reason == "CrashLoopBackOff":
            yield f"kubectl logs {where} --previous"
        elif reason in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName"):
            images = ", ".join(_list_images(pod, status))
            yield f"check that the image exists and may be pulled: {images}"
        elif reason == "CreateContainerConfigError":
            yield "create the ConfigMap or Secret that it refers to"
        elif status.state.running is not None and not status.ready:
            yield f"kubectl logs {where}"


def _list_images(pod: Pod, status: ContainerStatus) -> list[str]:
    """The images that a container may wait for: its own, and those of its image volumes."""
    mounted = {m.name for c in pods.containers(pod) if c.name == status.name for m in c.volume_mounts}
    volumes = (v.image.reference for v in pod.spec.volumes if v.image is not None and v.name in mounted)
    images = [status.image, *volumes]
    why = status.state.waiting.message if status.state.waiting else ""
    return [image for image in images if image in why] or images


# --- a node that is not ready


def _explain_lost_node(state: ClusterState, pod: Pod, node: Node | None, problem: str) -> Explanation:
    """The pod's state is not known; its tolerations decide when it is evicted."""
    advice = fencing.advise_fencing(pod.spec.node_name, node)
    what = "report its status"
    if node is None:
        why = f"node {pod.spec.node_name} does not exist any more: the pod is garbage-collected"
        return Explanation((waiting_step(what, "pod garbage collector", why),), advice)
    why = f"{problem}; the state of the pod is not known"
    step = waiting_step(what, f"kubelet of {node.name}", why, since=ready_since(node))
    evicted = next(iter(find_eviction(state, pod, node)), None)
    if evicted is None:
        tainted = any(t.effect == NO_EXECUTE for t in node.spec.taints)
        note = "the pod tolerates the taints forever" if tainted else "the node is not tainted yet"
        return Explanation((step, later_step(f"be evicted ({note})", "taint eviction")), advice)
    return Explanation((step, evicted), advice)


def find_eviction(state: ClusterState, pod: Pod, node: Node) -> Iterator[ExplanationStep]:
    """The taint-eviction plan; the toleration began when the taint was added."""
    taints = [t for t in node.spec.taints if t.effect == NO_EXECUTE]
    if not taints:
        return
    added = [at for t in taints if (at := parse_time(t.time_added)) is not None]
    elapsed = (state.now - min(added)).total_seconds() if added else 0.0
    for step in eviction.plan(eviction.TaintView(pod, taints, elapsed)):
        if isinstance(step, Wait):
            until = state.now + timedelta(seconds=step.seconds)
            since = min(added, default=None)
            waiting = waiting_step(
                "be evicted", "taint eviction", step, since=since, until=until, ends="deleted"
            )
            yield state.roles.add_times(waiting, "taint-eviction-controller", pod.key, step)
        else:
            why = "its toleration is over: it is deleted now"
            yield waiting_step("be evicted", "taint eviction", why)


# --- deletion


async def explain_deletion(state: ClusterState, pod: Pod) -> Explanation:
    nodes = await state.cache(Node)
    name = pod.spec.node_name
    node = nodes.get(name) if name else None
    deadline = parse_time(pod.metadata.deletion_timestamp)
    grace = timedelta(seconds=pod.metadata.deletion_grace_period_seconds or 0)
    since = deadline - grace if deadline is not None else None
    others = finalizers.finalizer_steps(pod, since)
    if not name:
        why = "the pod has no node: it is deleted now"
        return Explanation((waiting_step("be deleted", "API server", why, since=since), *others))
    if await state.cannot_read(Node):
        steps = await _explain_stopping(state, pod, since, deadline)
        return Explanation((*steps, *others), _stop_advice(pod))
    removed = [
        step for step in garbage.plan(pod, node, quarantine=0.0) if isinstance(step, garbage.RemovePod)
    ]
    if removed:
        why = f"{removed[0].why}: the pod is removed now"
        return Explanation((waiting_step("be deleted", "pod garbage collector", why, since=since), *others))
    if problem := describe_node_problem(node, name, state.now):
        why = f"{problem}; only its kubelet can report that the pod's containers have stopped"
        details = fencing.describe_fencing(state, name, node)
        step = waiting_step("be deleted", f"kubelet of {name}", why, since=since, details=details)
        return Explanation((step, *others), fencing.advise_fencing(name, node))
    in_time = deadline is not None and deadline > state.now
    steps = await _explain_stopping(state, pod, since, deadline)
    return Explanation((*steps, *others), () if in_time else _stop_advice(pod))


async def _explain_stopping(
    state: ClusterState, pod: Pod, since: datetime | None, deadline: datetime | None
) -> Sequence[ExplanationStep]:
    who = f"kubelet of {pod.spec.node_name}"
    running = [c.name for c in _statuses(pod) if c.state.running is not None]
    reports = state.roles.find(f"node/{pod.spec.node_name}", f"pod/{pod.key}")
    if running:
        why = f"container {', '.join(running)} is still running"
        overdue = deadline is not None and deadline <= state.now
        until = None if overdue else deadline
        stop = waiting_step("stop its containers", who, why, since=since, until=until, ends="killed")
        return stop, later_step("unmount its volumes", who)
    unmounts = await _describe_unmounts(state, pod)
    reported = reports[0].why if reports else ""
    why = (
        next(iter(unmounts), "") or reported or "the kubelet has not reported that all volumes are unmounted"
    )
    since = reports[0].since if reports else since
    return (
        done_step("its containers have stopped", who),
        waiting_step("unmount its volumes", who, why, since=since, details=unmounts[1:]),
    )


async def _describe_unmounts(state: ClusterState, pod: Pod) -> list[str]:
    """The kubelet's wait reports about the pod's volumes."""
    volumes = await state.cache(PersistentVolume)
    own = {*pods.claim_keys(pod)}
    keys = {name for v in volumes.all() if binding.claim_key(v) in own for name in unique_name(v)}
    return [
        f"{report.key.rpartition('^')[2]}: {report.why}{_describe_retry(state, report.next_try)}"
        for report in state.roles.reports
        if report.role == f"node/{pod.spec.node_name}" and report.key in keys and report.why
    ]


def _describe_retry(state: ClusterState, at: datetime | None) -> str:
    return f", retried in {format_duration(at - state.now)}" if at else ""


def _stop_advice(pod: Pod) -> tuple[str, ...]:
    return (
        f"check the events of the pod and the log of the kubelet of {pod.spec.node_name}",
        "kubectl delete pod --force removes only the object: its volumes stay mounted",
    )
