"""A pod: has no node, waits for its volumes, for its containers, for its node, or for its end."""

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

IDLE = ("ContainerCreating", "PodInitializing", "")  # what a container waits with before anything of it began


async def story(scene: ClusterState, pod: Pod) -> Explanation:
    if pod.is_deleting:
        return await explain_deletion(scene, pod)
    if pods.has_ended(pod):
        return Explanation((done_step(f"ended: {pod.status.phase}{_describe_reason(pod)}", "kubelet"),))
    if not pod.spec.node_name:
        return await scheduling.story(scene, pod) + Explanation((later_step("attach, mount and start"),))
    nodes = await scene.cache(Node)
    node = nodes.get(pod.spec.node_name)
    told = Explanation((done_step(f"scheduled to {pod.spec.node_name}", "scheduler"),))
    known = not await scene.cannot_read(Node)
    if known and (trouble := describe_node_problem(node, pod.spec.node_name, scene.now)):
        return told + _explain_lost_node(scene, pod, node, trouble)
    if not has_started_containers(pod):
        volumes = await mounting.story(scene, pod, node)
        if volumes.first_wait is not None:
            return told + volumes + Explanation((later_step("start its containers", "kubelet"),))
        told += volumes
    return told + _containers(pod)


def rest(pod: Pod) -> str:
    if pods.has_ended(pod):
        return f"it has ended: {pod.status.phase}{_describe_reason(pod)}"
    return f"runs on {pod.spec.node_name}, and is ready"


def _describe_reason(pod: Pod) -> str:
    reason = ": ".join(filter(None, (pod.status.reason, pod.status.message)))
    return f" ({reason})" if reason else ""


def _statuses(pod: Pod) -> Sequence[ContainerStatus]:
    return (*pod.status.init_container_statuses, *pod.status.container_statuses)


def has_started_containers(pod: Pod) -> bool:
    """A container has run, or failed to: its volumes are there."""
    return any(
        c.state.running
        or c.state.terminated
        or c.restart_count
        or (c.state.waiting and c.state.waiting.reason not in IDLE)
        for c in _statuses(pod)
    )


# --- containers


def _containers(pod: Pod) -> Explanation:
    steps = list(_unready_containers(pod))
    if steps:
        return Explanation(tuple(steps), tuple(dict.fromkeys(_container_advice(pod))))
    if is_ready(pod):
        return Explanation((done_step("its containers run and are ready", "kubelet"),))
    ready = next((c for c in pod.status.conditions if c.type == "Ready"), None)
    gates = [g.condition_type for g in pod.spec.readiness_gates]
    why = (
        f"readiness gates: {', '.join(gates)}"
        if gates
        else (ready.message if ready and ready.message else "")
    )
    since = parse_time(ready.last_transition_time if ready else pod.status.start_time)
    told = waiting_step("be ready", "kubelet", why or "its containers have not been started yet", since=since)
    return Explanation((told,))


def _unready_containers(pod: Pod) -> Iterator[ExplanationStep]:
    who = f"kubelet of {pod.spec.node_name}"
    stays = {c.name for c in pod.spec.init_containers if c.restart_policy == "Always"}
    for status in _statuses(pod):
        init = any(status.name == s.name for s in pod.status.init_container_statuses)
        what = f"{'init ' if init else ''}container {status.name}"
        state, last = status.state, status.last_state.terminated
        if state.waiting is not None and (state.waiting.reason not in IDLE or last is not None):
            why = ": ".join(filter(None, (state.waiting.reason, state.waiting.message)))
            ended = f"it ended with exit code {last.exit_code} {last.reason}".strip() if last else ""
            details = (f"{ended}, {status.restart_count} restarts",) if last else ()
            yield waiting_step(
                what, who, why, since=parse_time(last.finished_at if last else ""), details=details
            )
        elif state.running is not None and init and status.name not in stays:
            yield waiting_step(
                what,
                "the container",
                "it runs, and has to end first",
                since=parse_time(state.running.started_at),
            )
        elif state.running is not None and not init and not status.ready:
            why = "it runs, and is not ready: its readiness or startup probe has not succeeded"
            yield waiting_step(what, who, why, since=parse_time(state.running.started_at))
        elif state.terminated is not None and (state.terminated.exit_code or not init) and not status.ready:
            why = f"it ended with exit code {state.terminated.exit_code} {state.terminated.reason}".strip()
            if not (init and state.terminated.exit_code == 0):
                yield waiting_step(what, who, why, since=parse_time(state.terminated.finished_at))


def _container_advice(pod: Pod) -> Iterator[str]:
    for status in _statuses(pod):
        reason = status.state.waiting.reason if status.state.waiting else ""
        where = f"-n {pod.namespace} {pod.name} -c {status.name}"
        if reason == "CrashLoopBackOff":
            yield f"kubectl logs {where} --previous"
        elif reason in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName"):
            yield f"see whether the image exists and may be pulled: {status.image}"
        elif reason == "CreateContainerConfigError":
            yield "create the ConfigMap or Secret that it names"
        elif status.state.running is not None and not status.ready:
            yield f"kubectl logs {where}"


# --- a node that does not answer


def _explain_lost_node(scene: ClusterState, pod: Pod, node: Node | None, trouble: str) -> Explanation:
    """Nobody knows how the pod is; when it is given up, its tolerations say."""
    advice = fencing.advise_fencing(pod.spec.node_name, node)
    since = ready_since(node) if node is not None else None
    if node is None:
        why = f"node {pod.spec.node_name} does not exist any more: the pod is removed by garbage collection"
        return Explanation((waiting_step("be heard of", "pod garbage collector", why),), advice)
    step = waiting_step(
        "be heard of", f"kubelet of {node.name}", f"{trouble}: nobody knows how the pod is", since=since
    )
    evicted = next(iter(find_eviction(scene, pod, node)), None)
    if evicted is None:
        why = (
            "it tolerates that for ever"
            if any(t.effect == NO_EXECUTE for t in node.spec.taints)
            else "not tainted yet"
        )
        return Explanation((step, later_step(f"be evicted ({why})", "taint eviction")), advice)
    return Explanation((step, evicted), advice)


def find_eviction(scene: ClusterState, pod: Pod, node: Node) -> Iterator[ExplanationStep]:
    """The taint manager's plan; when it met the taint, the taint itself says."""
    driving = [t for t in node.spec.taints if t.effect == NO_EXECUTE]
    if not driving:
        return
    added = [at for t in driving if (at := parse_time(t.time_added)) is not None]
    elapsed = (scene.now - min(added)).total_seconds() if added else 0.0
    for step in eviction.plan(eviction.TaintView(pod, driving, elapsed)):
        if isinstance(step, Wait):
            until = scene.now + timedelta(seconds=step.seconds)
            told = waiting_step(
                "be evicted",
                "taint eviction",
                step.why,
                since=min(added, default=None),
                until=until,
                ends="deleted",
            )
            yield scene.roles.add_times(told, "taint-eviction-controller", pod.key)
        else:
            yield waiting_step(
                "be evicted", "taint eviction", "its toleration is over: it is deleted any moment"
            )


# --- going away


async def explain_deletion(scene: ClusterState, pod: Pod) -> Explanation:
    nodes = await scene.cache(Node)
    name = pod.spec.node_name
    node = nodes.get(name) if name else None
    asked = parse_time(pod.metadata.deletion_timestamp)
    grace = timedelta(seconds=pod.metadata.deletion_grace_period_seconds or 0)
    since = asked - grace if asked is not None else None
    others = finalizers.finalizer_steps(pod, since)
    if not name:
        return Explanation(
            (
                waiting_step(
                    "be deleted", "API server", "it never had a node and goes any moment", since=since
                ),
                *others,
            )
        )
    if await scene.cannot_read(Node):
        return Explanation((*await _explain_stopping(scene, pod, since, asked), *others), _stop_advice(pod))
    removed = [
        step for step in garbage.plan(pod, node, quarantine=0.0) if isinstance(step, garbage.RemovePod)
    ]
    if removed:
        why = f"{removed[0].why}: it is removed any moment"
        return Explanation((waiting_step("be deleted", "pod garbage collector", why, since=since), *others))
    if trouble := describe_node_problem(node, name, scene.now):
        why = f"{trouble}, and only its kubelet can say that nothing of the pod runs any more"
        details = fencing.describe_fencing(scene, name, node)
        step = waiting_step("be deleted", f"kubelet of {name}", why, since=since, details=details)
        return Explanation((step, *others), fencing.advise_fencing(name, node))
    in_time = asked is not None and asked > scene.now
    steps = await _explain_stopping(scene, pod, since, asked)
    return Explanation((*steps, *others), () if in_time else _stop_advice(pod))


async def _explain_stopping(
    scene: ClusterState, pod: Pod, since: datetime | None, deadline: datetime | None
) -> Sequence[ExplanationStep]:
    who = f"kubelet of {pod.spec.node_name}"
    running = [c.name for c in _statuses(pod) if c.state.running is not None]
    notes = scene.roles.of(f"node/{pod.spec.node_name}", f"pod/{pod.key}")
    if running:
        why = f"container {', '.join(running)} still runs"
        late = deadline is not None and deadline <= scene.now
        until = None if late else deadline
        stop = waiting_step("stop its containers", who, why, since=since, until=until, ends="killed")
        return stop, later_step("unmount its volumes", who)
    unmounting = await _unmounts(scene, pod)
    told = notes[0].why if notes else ""
    why = (
        unmounting[0]
        if unmounting
        else told or "its volumes are not all unmounted, or the kubelet has not said so yet"
    )
    since = notes[0].since if notes else since
    return (
        done_step("its containers have stopped", who),
        waiting_step("unmount its volumes", who, why, since=since, details=unmounting[1:]),
    )


async def _unmounts(scene: ClusterState, pod: Pod) -> list[str]:
    """What the kubelet says of the pod's volumes, while it goes."""
    volumes = await scene.cache(PersistentVolume)
    mine = {*pods.claim_keys(pod)}
    keys = {name for v in volumes.all() if binding.claim_key(v) in mine for name in unique_name(v)}
    return [
        f"{note.key.rpartition('^')[2]}: {note.why}{_describe_retry(scene, note.next_try)}"
        for note in scene.roles.reports
        if note.role == f"node/{pod.spec.node_name}" and note.key in keys and note.why
    ]


def _describe_retry(scene: ClusterState, at: datetime | None) -> str:
    return f", tried again in {format_duration(at - scene.now)}" if at else ""


def _stop_advice(pod: Pod) -> tuple[str, ...]:
    return (
        f"see the events of the pod and the log of the kubelet of {pod.spec.node_name}",
        "kubectl delete pod --force only forgets it: its volumes stay mounted where they are",
    )
