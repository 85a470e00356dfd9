"""A node: answers or not since when, whom it drives off and when, which volumes stay and why."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from datetime import timedelta

from msgspec import structs

from volplane.api.coordination import Lease
from volplane.api.core import Node, Pod
from volplane.controllers.attachdetach.controller import AttachDetach
from volplane.controllers.nodelifecycle import plan as lifecycle
from volplane.controllers.nodelifecycle.controller import LEASES, NodeLifecycle
from volplane.explain import attachments, fencing, finalizers
from volplane.explain.cluster_state import (
    ClusterState,
    describe_node_problem,
    format_duration,
    parse_time,
    ready_since,
)
from volplane.explain.pods import find_eviction
from volplane.explain.result import Explanation, ExplanationStep, done_step, waiting_step
from volplane.rules import pods
from volplane.rules.taints import is_ready
from volplane.rules.waits import Wait

MANY = 20  # pods and volumes that are named


async def story(scene: ClusterState, node: Node) -> Explanation:
    told = Explanation((await _explain_readiness(scene, node),))
    if node.spec.unschedulable:
        cordoned = done_step("cordoned: no new pods are put on it", "you")
        told += Explanation((cordoned,), (f"kubectl uncordon {node.name}",))
    if is_ready(node):
        return told + await _explain_remaining_detaches(scene, node)
    told += Explanation((), fencing.advise_fencing(node.name, node))
    return told + await _explain_pods(scene, node) + await _explain_volumes(scene, node)


def rest(node: Node) -> str:
    return "it is ready" + (", and cordoned" if node.spec.unschedulable else "")


async def _explain_readiness(scene: ClusterState, node: Node) -> ExplanationStep:
    since, heartbeat = ready_since(node), await _describe_heartbeat(scene, node)
    if is_ready(node):
        return done_step("ready", f"kubelet of {node.name}", *heartbeat, since=since)
    taints = ", ".join(f"{t.key}:{t.effect}" for t in node.spec.taints)
    details = [*heartbeat, f"taints: {taints or 'none'}", *fencing.describe_fencing(scene, node.name, node)]
    controller = await scene.load_controller(NodeLifecycle)
    # Who has just looked has heard every node just now; a node that is not ready is judged by its conditions.
    view = structs.replace(controller.view_health(node), silent=0.0)
    details += [
        step.why for step in lifecycle.plan(view) if isinstance(step, Wait) and "pods stay" in step.why
    ]
    who, why = f"kubelet of {node.name}", describe_node_problem(node, node.name, scene.now)
    return waiting_step("answer", who, why, since=since, details=details)


async def _describe_heartbeat(scene: ClusterState, node: Node) -> list[str]:
    lease = (await scene.cache(Lease, namespace=LEASES)).get(node.name, LEASES)
    last = parse_time(lease.spec.renew_time) if lease is not None else None
    return [f"last heartbeat {format_duration(scene.now - last)} ago"] if last is not None else []


async def _explain_pods(scene: ClusterState, node: Node) -> Explanation:
    """Who is driven off, and when."""
    here = [
        p for p in (await scene.cache(Pod)).all() if p.spec.node_name == node.name and not pods.has_ended(p)
    ]
    shown = sorted(_describe_evictions(scene, node, here))
    if not shown:
        return Explanation()
    more = [f"and {len(shown) - MANY} more"] if len(shown) > MANY else []
    why = f"{_limit_lines(here, 'pod')} as far as anybody knows on {node.name}"
    return Explanation(
        (waiting_step("give its pods up", "taint eviction", why, details=[*shown[:MANY], *more]),)
    )


def _describe_evictions(scene: ClusterState, node: Node, here: list[Pod]) -> Iterator[str]:
    for pod in here:
        if pod.is_deleting:
            yield f"pod {pod.key}: Terminating; only the kubelet, or an operator's word, ends it"
            continue
        step = next(iter(find_eviction(scene, pod, node)), None)
        if step is None:
            yield f"pod {pod.key}: stays, it tolerates every taint"
        elif step.until is not None:
            yield f"pod {pod.key}: evicted in {format_duration(max(step.until - scene.now, timedelta()))}"
        else:
            yield f"pod {pod.key}: evicted any moment"


async def _explain_volumes(scene: ClusterState, node: Node) -> Explanation:
    """Each volume that is attached here, and why it does not move."""
    controller = await scene.load_controller(AttachDetach)
    lines: list[str] = []
    for attachment in sorted(controller.by_node[node.name], key=lambda a: a.name):
        told = (await attachments.story(scene, attachment, leaving=True)).first_wait
        name = attachment.spec.source.persistent_volume_name or attachment.name
        if told is None:
            lines.append(f"{name}: attached")
        else:
            left = (
                f" ({told.ends} in {format_duration(told.until - scene.now)})"
                if told.until and told.ends
                else ""
            )
            lines.append(f"{name}: {told.why}{left}")
    if not lines:
        return Explanation()
    why = f"{_limit_lines(lines, 'volume')} still attached to {node.name}"
    return Explanation(
        (waiting_step("give its volumes up", attachments.CONTROLLER, why, details=lines[:MANY]),)
    )


async def _explain_remaining_detaches(scene: ClusterState, node: Node) -> Explanation:
    """A node that answers may still be asked to let volumes go."""
    controller = await scene.load_controller(AttachDetach)
    told = Explanation()
    for attachment in controller.by_node[node.name]:
        found = await attachments.story(scene, attachment)
        if found.first_wait is not None:
            told += Explanation(tuple(s for s in found.steps if s.state == "waits"), found.advice)
    if node.is_deleting:
        told += Explanation(
            tuple(finalizers.finalizer_steps(node, parse_time(node.metadata.deletion_timestamp)))
        )
    return told


def _limit_lines(things: Sized, what: str) -> str:
    return f"{len(things)} {what}{'s' if len(things) != 1 else ''}"
