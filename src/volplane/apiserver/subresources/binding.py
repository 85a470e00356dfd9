"""pods/binding: assigns a pod to a node, once. A pod that has a node never gets another."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from volplane.api.core import Binding, Pod, PodCondition
from volplane.api.errors import Conflict, Invalid, not_supported, required_value
from volplane.api.meta import ObjectMeta
from volplane.apiserver.backend import Backend
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.strategy import ApiCall
from volplane.apiserver.verbs.update import SERVER_WRITE, check_version, modify
from volplane.base import clock
from volplane.store import StoreRecord


async def bind(backend: Backend, entry: ServedResource, call: ApiCall, binding: Binding) -> None:
    _check_target(entry, call.name, binding)
    condition = PodCondition(type="PodScheduled", status="True", last_transition_time=clock.stamp(call.now))

    async def assign_node(pod: Pod, record: StoreRecord) -> Any:
        check_version(entry, call.name, pod.metadata, binding.metadata, record.revision)
        _check_pod(entry, pod)
        spec = structs.replace(pod.spec, node_name=binding.target.name)
        others = tuple(c for c in pod.status.conditions if c.type != condition.type)
        status = structs.replace(pod.status, conditions=(*others, condition))
        return structs.replace(
            pod, metadata=_merge_metadata(pod.metadata, binding.metadata), spec=spec, status=status
        )

    await modify(backend, entry, call, assign_node, SERVER_WRITE)


async def bind_named(backend: Backend, entry: ServedResource, call: ApiCall, binding: Binding) -> None:
    """The older path: a Binding posted to the namespace, which names its pod."""
    pods = backend.registry.of(Pod)
    name = binding.metadata.name
    await bind(
        backend, pods, structs.replace(call, kind=pods.kind, name=name, subresource="binding"), binding
    )


def _check_target(entry: ServedResource, name: str, binding: Binding) -> None:
    causes = []
    if binding.target.kind not in ("", "Node"):
        causes.append(not_supported("target.kind", binding.target.kind, ("Node", "<empty>")))
    if not binding.target.name:
        causes.append(required_value("target.name"))
    if causes:
        raise Invalid.of("Binding", binding.metadata.name or name, causes)


def _check_pod(entry: ServedResource, pod: Pod) -> None:
    if pod.is_deleting:
        why = f"pod {pod.name} is being deleted, cannot be assigned to a host"
    elif pod.spec.node_name:
        why = f'pod {pod.name} is already assigned to node "{pod.spec.node_name}"'
    elif pod.spec.scheduling_gates:
        why = f"pod {pod.name} has non-empty .spec.schedulingGates"
    else:
        return
    raise Conflict.of(entry.kind, pod.name, why, resource="pods/binding", called="pods/binding")


def _merge_metadata(pod: ObjectMeta, binding: ObjectMeta) -> ObjectMeta:
    return structs.replace(
        pod,
        annotations={**pod.annotations, **binding.annotations},
        labels={**pod.labels, **binding.labels},
    )
