"""Create what every cluster has at start: namespaces, roles, priority classes, client CA, its own Service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from msgspec import structs

from volplane.api import discovery
from volplane.api.core import (
    ConfigMap,
    EndpointAddress,
    EndpointPort,
    Endpoints,
    EndpointSubset,
    Namespace,
    Service,
    ServicePort,
    ServiceSpec,
)
from volplane.api.errors import AlreadyExists
from volplane.api.meta import ObjectMeta, Resource
from volplane.api.scheduling import PriorityClass
from volplane.apiserver.auth.rbac import bootstrap as roles
from volplane.apiserver.backend import Backend
from volplane.apiserver.start_progress import StartProgress, StartStep
from volplane.apiserver.strategies.service_addresses import API_SERVER_IP
from volplane.apiserver.verbs.create import create
from volplane.apiserver.verbs.update import SERVER_WRITE, modify
from volplane.store import StoreRecord

CLIENT_CA = "extension-apiserver-authentication"  # extension API servers read the client CA here
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


PRIORITY_CLASSES = (
    PriorityClass(
        metadata=ObjectMeta(name="system-cluster-critical"),
        value=2_000_000_000,
        description="Used for system critical pods that must run in the cluster, but can be moved to another "
        "node if necessary.",
    ),
    PriorityClass(
        metadata=ObjectMeta(name="system-node-critical"),
        value=2_000_001_000,
        description="Used for system critical pods that must not be moved from their current node.",
    ),
)


async def bootstrap(backend: Backend, progress: StartProgress) -> None:
    await asyncio.gather(
        _finish(progress, StartStep.ROLES, roles.bootstrap(backend)),
        _finish(progress, StartStep.PRIORITY_CLASSES, roles.create_missing(backend, PRIORITY_CLASSES)),
        *(_namespace(backend, name) for name in NAMESPACES),
    )


async def _finish(progress: StartProgress, step: StartStep, work: Awaitable[None]) -> None:
    await work
    progress.finish(step)


async def _namespace(backend: Backend, name: str) -> None:
    entry = backend.namespaces
    if await backend.record(entry, "", name) is not None:
        return
    call = backend.system_call("create", entry, name)
    with suppress(AlreadyExists):  # another server on the same store was faster
        await create(backend, entry, call, Namespace(metadata=ObjectMeta(name=name)))


async def publish_api_server(backend: Backend, address: str, port: int) -> None:
    """Publish this server as the Service `default/kubernetes`, with its endpoints."""
    meta = ObjectMeta(name="kubernetes", namespace="default")
    labels = {"component": "apiserver", "provider": "kubernetes"}
    https = ServicePort(name="https", port=443, protocol="TCP", target_port=port)
    spec = ServiceSpec(
        type="ClusterIP",
        cluster_ip=API_SERVER_IP,
        cluster_ips=(API_SERVER_IP,),
        ports=(https,),
        session_affinity="None",
        ip_families=("IPv4",),
        ip_family_policy="SingleStack",
        internal_traffic_policy="Cluster",
    )
    subset = EndpointSubset(
        addresses=(EndpointAddress(ip=address),),
        ports=(EndpointPort(name="https", port=port, protocol="TCP"),),
    )
    slice_port = discovery.EndpointPort(name="https", port=port, protocol="TCP")
    endpoint = discovery.Endpoint(addresses=(address,), conditions=discovery.EndpointConditions(ready=True))
    await _write(backend, Service(metadata=structs.replace(meta, labels=labels), spec=spec))
    skip = {"endpointslice.kubernetes.io/skip-mirror": "true"}
    await _write(backend, Endpoints(metadata=structs.replace(meta, labels=skip), subsets=(subset,)))
    await _write(
        backend,
        discovery.EndpointSlice(
            metadata=structs.replace(meta, labels={"kubernetes.io/service-name": "kubernetes"}),
            address_type="IPv6" if ":" in address else "IPv4",
            endpoints=(endpoint,),
            ports=(slice_port,),
        ),
    )


async def _write(backend: Backend, obj: Resource) -> None:
    """Create an object, or give the stored one its content."""
    entry = backend.registry.of(type(obj))
    call = backend.system_call("create", entry, obj.name, obj.namespace)
    if await backend.record(entry, obj.namespace, obj.name) is None:
        with suppress(AlreadyExists):  # another server on the same store was faster
            await create(backend, entry, call, obj)
        return

    async def set_content(held: Any, record: StoreRecord) -> Any:
        changes = {
            name: getattr(obj, name) for name in obj.__struct_fields__ if name not in ("metadata", "status")
        }
        return structs.replace(held, **changes)

    await modify(backend, entry, structs.replace(call, verb="update"), set_content, SERVER_WRITE)


async def publish_client_ca(backend: Backend, ca: str) -> None:
    """Publish the CA that signs client certificates."""
    entry = backend.registry.of(ConfigMap)
    namespace, data = "kube-system", {"client-ca-file": ca}
    call = backend.system_call("create", entry, namespace=namespace)
    if await backend.record(entry, namespace, CLIENT_CA) is None:
        try:
            meta = ObjectMeta(name=CLIENT_CA, namespace=namespace)
            await create(backend, entry, call, ConfigMap(metadata=meta, data=data))
            return
        except AlreadyExists:
            pass

    async def set_data(held: ConfigMap, record: StoreRecord) -> ConfigMap:
        return structs.replace(held, data={**held.data, **data})

    await modify(backend, entry, structs.replace(call, verb="update", name=CLIENT_CA), set_data, SERVER_WRITE)
