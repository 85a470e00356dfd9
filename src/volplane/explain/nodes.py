"""A node: since when it is not ready, which pods are evicted when, which volumes stay attached and why."""

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
from volplane.explain.result import Explanation, ExplanationStep, StepState, done_step, waiting_step
from volplane.rules import pods
from volplane.rules.taints import is_ready
from volplane.rules.waits import Wait, WaitReason

MAX_LINES = 20  # pods or volumes listed one by one


async def explain(state: ClusterState, node: Node) -> Explanation:
    explanation = Explanation((await _explain_readiness(state, node),))
    if node.spec.unschedulable:
        cordoned = done_step("cordoned: no new pods are scheduled to it", "you")
        explanation += Explanation((cordoned,), (f"kubectl uncordon {node.name}",))
    if is_ready(node):
        return explanation + await _explain_remaining_detaches(state, node)
    explanation += Explanation((), fencing.advise_fencing(node.name, node))
    return explanation + await _explain_pods(state, node) + await _explain_volumes(state, node)


def summarize(node: Node) -> str:
    return "ready" + (", and cordoned" if node.spec.unschedulable else "")


async def _explain_readiness(state: ClusterState, node: Node) -> ExplanationStep:
    since, heartbeat = ready_since(node), await _describe_heartbeat(state, node)
    if is_ready(node):
        return done_step("ready", f"kubelet of {node.name}", *heartbeat, since=since)
    taints = ", ".join(f"{t.key}:{t.effect}" for t in node.spec.taints)
    controller = await state.load_controller(NodeLifecycle)
    # A controller that has just been loaded counts every node as heard from: only conditions matter here.
    health = structs.replace(controller.view_health(node), silent=0.0)
    details = [
        *heartbeat,
        f"taints: {taints or 'none'}",
        *fencing.describe_fencing(state, node.name, node),
        *(
            step.text
            for step in lifecycle.plan(health)
            if isinstance(step, Wait) and step.reason is not WaitReason.HEARTBEAT
        ),
    ]
    why = describe_node_problem(node, node.name, state.now)
    return waiting_step("be ready", f"kubelet of {node.name}", why, since=since, details=details)


async def _describe_heartbeat(state: ClusterState, node: Node) -> list[str]:
    lease = (await state.cache(Lease, namespace=LEASES)).get(node.name, LEASES)
    last = parse_time(lease.spec.renew_time) if lease is not None else None
    return [f"last heartbeat {format_duration(state.now - last)} ago"] if last is not None else []


async def _explain_pods(state: ClusterState, node: Node) -> Explanation:
    """Which pods are evicted, and when."""
    everywhere = (await state.cache(Pod)).all()
    here = [p for p in everywhere if p.spec.node_name == node.name and not pods.has_ended(p)]
    lines = sorted(_describe_evictions(state, node, here))
    if not lines:
        return Explanation()
    why = f"{_count(here, 'pod')} may still be running on {node.name}"
    return Explanation((waiting_step("evict its pods", "taint eviction", why, details=_limit(lines)),))


def _describe_evictions(state: ClusterState, node: Node, here: list[Pod]) -> Iterator[str]:
    for pod in here:
        if pod.is_deleting:
            yield f"pod {pod.key}: Terminating until the kubelet or an operator ends it"
            continue
        step = next(iter(find_eviction(state, pod, node)), None)
        if step is None:
            yield f"pod {pod.key}: stays, it tolerates all taints"
        elif step.until is not None:
            yield f"pod {pod.key}: evicted in {format_duration(max(step.until - state.now, timedelta()))}"
        else:
            yield f"pod {pod.key}: evicted now"


async def _explain_volumes(state: ClusterState, node: Node) -> Explanation:
    """Each volume that is attached here, and why it is not detached."""
    controller = await state.load_controller(AttachDetach)
    lines: list[str] = []
    for attachment in sorted(controller.by_node[node.name], key=lambda a: a.name):
        step = (await attachments.explain(state, attachment, leaving=True)).first_wait
        name = attachment.spec.source.persistent_volume_name or attachment.name
        if step is None:
            lines.append(f"{name}: attached")
        else:
            left = (
                f" ({step.ends} in {format_duration(step.until - state.now)})"
                if step.until and step.ends
                else ""
            )
            lines.append(f"{name}: {step.why}{left}")
    if not lines:
        return Explanation()
    why = f"{_count(lines, 'volume')} still attached to {node.name}"
    step = waiting_step("detach its volumes", attachments.CONTROLLER, why, details=_limit(lines))
    return Explanation((step,))


async def _explain_remaining_detaches(state: ClusterState, node: Node) -> Explanation:
    """Volumes that a ready node still has to unmount."""
    controller = await state.load_controller(AttachDetach)
    explanation = Explanation()
    for attachment in controller.by_node[node.name]:
        found = await attachments.explain(state, attachment)
        waits = tuple(step for step in found.steps if step.state is StepState.WAITS)
        if waits:
            explanation += Explanation(waits, found.advice)
    if node.is_deleting:
        since = parse_time(node.metadata.deletion_timestamp)
        explanation += Explanation(tuple(finalizers.finalizer_steps(node, since)))
    return explanation


def _limit(lines: list[str]) -> list[str]:
    more = [f"and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else []
    return [*lines[:MAX_LINES], *more]


def _count(items: Sized, what: str) -> str:
    return f"{len(items)} {what}{'s' if len(items) != 1 else ''}"
