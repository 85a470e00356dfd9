"""Which addresses a Service has: those of the pods that its selector selects.

An EndpointSlice has up to 100 endpoints with the same ports. Pods that are being deleted stay in the slices,
marked as terminating, until they are gone; the older Endpoints have only the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from msgspec import Struct

from volplane.api import discovery
from volplane.api.core import (
    EndpointAddress,
    EndpointPort,
    Endpoints,
    EndpointSubset,
    ObjectReference,
    Pod,
    Service,
    ServicePort,
)
from volplane.api.discovery import Endpoint, EndpointConditions, EndpointSlice
from volplane.api.meta import ObjectMeta
from volplane.rules.workloads import is_ready, owner_reference

SERVICE_NAME = "kubernetes.io/service-name"
HEADLESS_LABEL = "service.kubernetes.io/headless"
SLICE_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
SLICE_MANAGER = "endpointslice-controller.k8s.io"
ENDPOINTS_MANAGED_BY = "endpoints.kubernetes.io/managed-by"
ENDPOINTS_MANAGER = "endpoint-controller"
ENDPOINTS_PER_SLICE = 100
ADDRESSES_PER_SUBSET = 1000

Ports = tuple[discovery.EndpointPort, ...]


class CreateEndpoints(Struct, frozen=True):
    object: EndpointSlice | Endpoints


class ReplaceEndpoints(Struct, frozen=True):
    old: EndpointSlice | Endpoints
    new: EndpointSlice | Endpoints


class DeleteEndpoints(Struct, frozen=True):
    object: EndpointSlice | Endpoints


Step = CreateEndpoints | ReplaceEndpoints | DeleteEndpoints


def plan_slices(
    service: Service | None, pods: Sequence[Pod], slices: Sequence[EndpointSlice]
) -> Iterator[Step]:
    held = {one.name: one for one in slices if one.metadata.labels.get(SLICE_MANAGED_BY) == SLICE_MANAGER}
    wanted = {one.name: one for one in _slices_of(service, pods)} if has_selector(service) else {}
    for name, new in wanted.items():
        if name not in held:
            yield CreateEndpoints(new)
        elif _content(held[name]) != _content(new):
            yield ReplaceEndpoints(held[name], new)
    for name, old in held.items():
        if name not in wanted and not old.is_deleting:
            yield DeleteEndpoints(old)


def plan_endpoints(service: Service | None, pods: Sequence[Pod], old: Endpoints | None) -> Iterator[Step]:
    if not has_selector(service):
        if service is None and old is not None and ENDPOINTS_MANAGED_BY in old.metadata.labels:
            yield DeleteEndpoints(old)
        return
    assert service is not None
    new = _endpoints_of(service, pods)
    if old is None:
        yield CreateEndpoints(new)
    elif (old.subsets, old.metadata.labels) != (new.subsets, new.metadata.labels):
        yield ReplaceEndpoints(old, new)


def has_selector(service: Service | None) -> bool:
    return service is not None and bool(service.spec.selector) and service.spec.type != "ExternalName"


def selects(service: Service, pod: Pod) -> bool:
    return has_selector(service) and service.spec.selector.items() <= pod.metadata.labels.items()


def relevant_fields(pod: Pod) -> tuple[object, ...]:
    """The fields of a pod that its Services' endpoints depend on."""
    return (
        pod.metadata.labels,
        pod.status.pod_ip,
        pod.status.phase,
        is_ready(pod),
        pod.is_deleting,
        pod.spec.hostname,
    )


# Slices


def _content(one: EndpointSlice) -> tuple[object, ...]:
    return one.endpoints, one.ports, one.address_type, one.metadata.labels


def _slices_of(service: Service | None, pods: Sequence[Pod]) -> Iterator[EndpointSlice]:
    assert service is not None
    usable = (pod for pod in pods if _has_address(pod))
    entries = sorted(((_ports(service, pod), pod) for pod in usable), key=_by_ports_and_name)
    if not entries:
        yield _slice(service, (), (), 0)
    for _, group in groupby(entries, key=lambda entry: _key_of_ports(entry[0])):
        members = list(group)
        for number, some in enumerate(_batches(members, ENDPOINTS_PER_SLICE)):
            yield _slice(service, members[0][0], tuple(_endpoint(service, pod) for _, pod in some), number)


def _batches(items: Sequence[tuple[Ports, Pod]], size: int) -> Iterator[Sequence[tuple[Ports, Pod]]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _by_ports_and_name(entry: tuple[Ports, Pod]) -> tuple[object, ...]:
    return _key_of_ports(entry[0]), entry[1].name


def _key_of_ports(ports: Ports) -> tuple[object, ...]:
    return tuple((p.name or "", p.protocol or "", p.port or 0) for p in ports)


def _slice(service: Service, ports: Ports, endpoints: tuple[Endpoint, ...], number: int) -> EndpointSlice:
    labels = {
        **service.metadata.labels,
        SERVICE_NAME: service.name,
        SLICE_MANAGED_BY: SLICE_MANAGER,
        **({HEADLESS_LABEL: ""} if service.spec.cluster_ip == "None" else {}),
    }
    identity = f"{service.uid}/{_key_of_ports(ports)}/{number}"
    suffix = hashlib.sha256(identity.encode()).hexdigest()[:5]
    meta = ObjectMeta(
        name=f"{service.name}-{suffix}",
        namespace=service.namespace,
        labels=labels,
        owner_references=(owner_reference(service),),
    )
    return EndpointSlice(metadata=meta, address_type="IPv4", endpoints=endpoints, ports=ports)


def _endpoint(service: Service, pod: Pod) -> Endpoint:
    serving = is_ready(pod)
    ready = service.spec.publish_not_ready_addresses or (serving and not pod.is_deleting)
    return Endpoint(
        addresses=(pod.status.pod_ip,),
        conditions=EndpointConditions(ready=ready, serving=serving, terminating=pod.is_deleting),
        hostname=_hostname(service, pod) or None,
        target_ref=_target(pod),
        node_name=pod.spec.node_name or None,
    )


def _ports(service: Service, pod: Pod) -> Ports:
    found = []
    for port in service.spec.ports:
        number = _target_port(port, pod)
        if number:
            found.append(
                discovery.EndpointPort(
                    name=port.name, protocol=port.protocol, port=number, app_protocol=port.app_protocol
                )
            )
    return tuple(found)


def _target_port(port: ServicePort, pod: Pod) -> int:
    """The number of a port; a name is that of a container's port."""
    target = port.target_port or port.port
    if isinstance(target, int):
        return target
    for container in pod.spec.containers:
        for known in container.ports:
            if known.name == target and known.protocol == port.protocol:
                return known.container_port
    return 0


def _has_address(pod: Pod) -> bool:
    return bool(pod.status.pod_ip) and pod.status.phase not in ("Succeeded", "Failed")


def _hostname(service: Service, pod: Pod) -> str:
    return pod.spec.hostname if pod.spec.hostname and pod.spec.subdomain == service.name else ""


def _target(pod: Pod) -> ObjectReference:
    return ObjectReference(kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid)


# Endpoints


def _endpoints_of(service: Service, pods: Sequence[Pod]) -> Endpoints:
    labels = {**service.metadata.labels, ENDPOINTS_MANAGED_BY: ENDPOINTS_MANAGER}
    if service.spec.cluster_ip == "None":
        labels[HEADLESS_LABEL] = ""
    meta = ObjectMeta(name=service.name, namespace=service.namespace, labels=labels)
    return Endpoints(metadata=meta, subsets=tuple(_subsets(service, pods)))


def _subsets(service: Service, pods: Iterable[Pod]) -> Iterator[EndpointSubset]:
    usable = (pod for pod in pods if _has_address(pod) and not pod.is_deleting)
    entries = sorted(((_ports(service, pod), pod) for pod in usable), key=_by_ports_and_name)
    for _, group in groupby(entries, key=lambda entry: _key_of_ports(entry[0])):
        members = list(group)[:ADDRESSES_PER_SUBSET]
        ports = (
            EndpointPort(p.name or "", p.port or 0, p.protocol or "", p.app_protocol) for p in members[0][0]
        )
        everyone = service.spec.publish_not_ready_addresses
        yield EndpointSubset(
            addresses=tuple(_address(service, p) for _, p in members if everyone or is_ready(p)),
            not_ready_addresses=tuple(
                _address(service, p) for _, p in members if not everyone and not is_ready(p)
            ),
            ports=tuple(ports),
        )


def _address(service: Service, pod: Pod) -> EndpointAddress:
    return EndpointAddress(
        ip=pod.status.pod_ip,
        hostname=_hostname(service, pod),
        node_name=pod.spec.node_name or None,
        target_ref=_target(pod),
    )
