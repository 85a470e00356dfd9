"""Create and delete the pods of workloads, with upstream's events.

A refusal is returned, not raised: the other pods of the same batch are not given up for it.
"""

from __future__ import annotations

from volplane.api.core import Pod
from volplane.api.errors import APIError
from volplane.api.meta import Resource
from volplane.client.client import Client
from volplane.loops.events import EventRecorder

NAMESPACE_TERMINATING = "NamespaceTerminating"


async def create_pod(client: Client, events: EventRecorder, owner: Resource, pod: Pod) -> APIError | None:
    try:
        made = await client.create(pod)
    except APIError as error:
        if any(cause.reason == NAMESPACE_TERMINATING for cause in error.causes):
            return None  # every attempt would fail, and the owner is deleted soon
        events.event(owner, "Warning", "FailedCreate", f"Error creating: {error}")
        return error
    events.event(owner, "Normal", "SuccessfulCreate", f"Created pod: {made.name}")
    return None


async def delete_pod(client: Client, events: EventRecorder, owner: Resource, pod: Pod) -> APIError | None:
    try:
        await client.delete(Pod, pod.name, pod.namespace, uid=pod.uid, missing_ok=True)
    except APIError as error:
        events.event(owner, "Warning", "FailedDelete", f"Error deleting: {error}")
        return error
    events.event(owner, "Normal", "SuccessfulDelete", f"Deleted pod: {pod.name}")
    return None
