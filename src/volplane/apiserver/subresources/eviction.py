"""pods/eviction: a delete that says why the pod goes."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from volplane.api.core import Pod, PodCondition
from volplane.api.meta import DeleteOptions
from volplane.api.policy import Eviction
from volplane.apiserver.backend import Backend
from volplane.apiserver.registry import Entry
from volplane.apiserver.strategy import Call
from volplane.apiserver.verbs.delete import check_options, delete
from volplane.apiserver.verbs.update import AS_IT_IS, modify
from volplane.base import clock
from volplane.store import Record


async def evict(backend: Backend, entry: Entry, call: Call, eviction: Eviction) -> None:
    options = eviction.delete_options or DeleteOptions()
    check_options(options)
    dry = call.dry_run or bool(options.dry_run)
    call = structs.replace(call, dry_run=dry)
    condition = PodCondition(
        type="DisruptionTarget",
        status="True",
        reason="EvictionByEvictionAPI",
        message="Eviction API: evicting",
        last_transition_time=clock.stamp(call.now),
    )

    async def marked(pod: Pod, record: Record) -> Any:
        if pod.is_deleting:
            return pod
        others = tuple(c for c in pod.status.conditions if c.type != condition.type)
        return structs.replace(pod, status=structs.replace(pod.status, conditions=(*others, condition)))

    await modify(backend, entry, call, marked, AS_IT_IS)
    await delete(backend, entry, call, options)
