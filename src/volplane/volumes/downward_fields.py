"""The downward API: fields of a pod as text, and resources of its containers as numbers.

Environment variables and downwardAPI volumes read the same fields. Whole maps (`metadata.labels`) are for
files only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from volplane.api import quantity
from volplane.api.core import Container, Pod, ResourceFieldSelector

_ENTRY = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")

_FIELDS: Mapping[str, Callable[[Pod], str]] = {
    "metadata.name": lambda pod: pod.name,
    "metadata.namespace": lambda pod: pod.namespace,
    "metadata.uid": lambda pod: pod.uid,
    "metadata.labels": lambda pod: format_map(pod.metadata.labels),
    "metadata.annotations": lambda pod: format_map(pod.metadata.annotations),
    "spec.nodeName": lambda pod: pod.spec.node_name,
    "spec.serviceAccountName": lambda pod: pod.spec.service_account_name,
    "status.hostIP": lambda pod: pod.status.host_ip,
    "status.hostIPs": lambda pod: ",".join(a.ip for a in pod.status.host_ips),
    "status.podIP": lambda pod: pod.status.pod_ip,
    "status.podIPs": lambda pod: ",".join(a.ip for a in pod.status.pod_ips),
}


class UnknownField(ValueError):
    pass


def read_field(pod: Pod, path: str) -> str:
    entry = _ENTRY.fullmatch(path)
    if entry:
        return getattr(pod.metadata, entry[1]).get(entry[2], "") or ""
    try:
        return _FIELDS[path](pod)
    except KeyError:
        raise UnknownField(f"unsupported fieldPath: {path}") from None


def format_map(entries: Mapping[str, str]) -> str:
    return "\n".join(f"{key}={json.dumps(entries[key], ensure_ascii=False)}" for key in sorted(entries))


def read_resource(
    pod: Pod, selector: ResourceFieldSelector, allocatable: Mapping[str, str], *, default: str = ""
) -> str:
    """`limits.cpu` and the like, in units of the divisor, rounded up."""
    kind, _, name = selector.resource.partition(".")
    container = _container(pod, selector.container_name or default)
    if kind not in ("limits", "requests") or not name:
        raise UnknownField(f"unsupported container resource : {selector.resource}")
    amount = getattr(container.resources, kind).get(name)
    if amount is None and kind == "limits":
        amount = allocatable.get(name)  # without a limit, what the node can allocate
    divisor = quantity.milli(selector.divisor or "1") or 1000
    return str(-(-quantity.milli(amount or "0") // divisor))


def _container(pod: Pod, name: str) -> Container:
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        if container.name == name:
            return container
    raise UnknownField(f"container {name} not found")
