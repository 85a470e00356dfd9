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
from volplane.explain.answer import Step, Story, done, waits
from volplane.explain.pods import eviction_of
from volplane.explain.scene import Scene, ago, moment, ready_since, unready
from volplane.rules import pods
from volplane.rules.steps import Wait
from volplane.rules.taints import is_ready

MANY = 20  # pods and volumes that are named


async def story(scene: Scene, node: Node) -> Story:
    told = Story((await _readiness(scene, node),))
    if node.spec.unschedulable:
        cordoned = done("cordoned: no new pods are put on it", "you")
        told += Story((cordoned,), (f"kubectl uncordon {node.name}",))
    if is_ready(node):
        return told + await _left_over(scene, node)
    told += Story((), fencing.advice(node.name, node))
    return told + await _pods(scene, node) + await _volumes(scene, node)


def rest(node: Node) -> str:
    return "it is ready" + (", and cordoned" if node.spec.unschedulable else "")


async def _readiness(scene: Scene, node: Node) -> Step:
    since, heartbeat = ready_since(node), await _heartbeat(scene, node)
    if is_ready(node):
        return done("ready", f"kubelet of {node.name}", *heartbeat, since=since)
    taints = ", ".join(f"{t.key}:{t.effect}" for t in node.spec.taints)
    details = [*heartbeat, f"taints: {taints or 'none'}", *fencing.facts(scene, node.name, node)]
    controller = await scene.seen_by(NodeLifecycle)
    # Who has just looked has heard every node just now; a node that is not ready is judged by its conditions.
    view = structs.replace(controller.view_health(node), silent=0.0)
    details += [
        step.why for step in lifecycle.plan(view) if isinstance(step, Wait) and "pods stay" in step.why
    ]
    who, why = f"kubelet of {node.name}", unready(node, node.name, scene.now)
    return waits("answer", who, why, since=since, details=details)


async def _heartbeat(scene: Scene, node: Node) -> list[str]:
    lease = (await scene.all(Lease, namespace=LEASES)).get(node.name, LEASES)
    last = moment(lease.spec.renew_time) if lease is not None else None
    return [f"last heartbeat {ago(scene.now - last)} ago"] if last is not None else []


async def _pods(scene: Scene, node: Node) -> Story:
    """Who is driven off, and when."""
    here = [
        p for p in (await scene.all(Pod)).all() if p.spec.node_name == node.name and not pods.has_ended(p)
    ]
    shown = sorted(_fates(scene, node, here))
    if not shown:
        return Story()
    more = [f"and {len(shown) - MANY} more"] if len(shown) > MANY else []
    why = f"{_many(here, 'pod')} as far as anybody knows on {node.name}"
    return Story((waits("give its pods up", "taint eviction", why, details=[*shown[:MANY], *more]),))


def _fates(scene: Scene, node: Node, here: list[Pod]) -> Iterator[str]:
    for pod in here:
        if pod.is_deleting:
            yield f"pod {pod.key}: Terminating; only the kubelet, or an operator's word, ends it"
            continue
        step = next(iter(eviction_of(scene, pod, node)), None)
        if step is None:
            yield f"pod {pod.key}: stays, it tolerates every taint"
        elif step.until is not None:
            yield f"pod {pod.key}: evicted in {ago(max(step.until - scene.now, timedelta()))}"
        else:
            yield f"pod {pod.key}: evicted any moment"


async def _volumes(scene: Scene, node: Node) -> Story:
    """Each volume that is attached here, and why it does not move."""
    controller = await scene.seen_by(AttachDetach)
    lines: list[str] = []
    for attachment in sorted(controller.by_node[node.name], key=lambda a: a.name):
        told = (await attachments.story(scene, attachment, leaving=True)).waits
        name = attachment.spec.source.persistent_volume_name or attachment.name
        if told is None:
            lines.append(f"{name}: attached")
        else:
            left = f" ({told.ends} in {ago(told.until - scene.now)})" if told.until and told.ends else ""
            lines.append(f"{name}: {told.why}{left}")
    if not lines:
        return Story()
    why = f"{_many(lines, 'volume')} still attached to {node.name}"
    return Story((waits("give its volumes up", attachments.CONTROLLER, why, details=lines[:MANY]),))


async def _left_over(scene: Scene, node: Node) -> Story:
    """A node that answers may still be asked to let volumes go."""
    controller = await scene.seen_by(AttachDetach)
    told = Story()
    for attachment in controller.by_node[node.name]:
        found = await attachments.story(scene, attachment)
        if found.waits is not None:
            told += Story(tuple(s for s in found.steps if s.state == "waits"), found.advice)
    if node.is_deleting:
        told += Story(tuple(finalizers.steps(node, moment(node.metadata.deletion_timestamp))))
    return told


def _many(things: Sized, what: str) -> str:
    return f"{len(things)} {what}{'s' if len(things) != 1 else ''}"
