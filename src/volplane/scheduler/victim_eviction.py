"""Evict the victims of a preemption: set their condition, delete them with their grace period.

Every step may run twice: the deletion is for one uid, and a victim that is gone needs nothing.
"""

from __future__ import annotations

import asyncio

from volplane.api.core import Pod
from volplane.base import clock, trace
from volplane.client.client import Client
from volplane.loops.events import EventRecorder
from volplane.scheduler.preemption import PreemptionCandidate
from volplane.scheduler.profile import DEFAULT


async def evict_victims(
    client: Client, events: EventRecorder, pod: Pod, eviction: PreemptionCandidate
) -> None:
    with trace.span("default-scheduler", "preempt", f"pod/{pod.key}", node=eviction.node):
        async with asyncio.TaskGroup() as group:
            for victim in eviction.victims:
                if not victim.is_deleting:
                    group.create_task(_evict_victim(client, pod, victim))
    for victim in eviction.victims:
        if not victim.is_deleting:
            message = f"Preempted by pod {pod.uid} on node {eviction.node}"
            name = pod.spec.scheduler_name or DEFAULT
            events.event(victim, "Normal", "Preempted", message, name, action="Preempting")


async def _evict_victim(client: Client, pod: Pod, victim: Pod) -> None:
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": f"{pod.spec.scheduler_name}: preempting to accommodate a higher priority pod",
        "lastTransitionTime": clock.stamp(),
    }
    updated = await client.patch(
        Pod,
        victim.name,
        victim.namespace,
        strategic={"status": {"conditions": [condition]}},
        subresource="status",
        uid=victim.uid,
        missing_ok=True,
    )
    if updated is not None:
        await client.delete(Pod, victim.name, victim.namespace, uid=victim.uid, missing_ok=True)
