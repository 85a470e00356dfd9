"""Nodes, namespaces, events, leases, secrets, config maps, accounts, services."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from volplane.api.coordination import Lease
from volplane.api.core import ConfigMap, Event, Namespace, Node, Secret, Service, ServiceAccount
from volplane.api.noderuntime import RuntimeClass
from volplane.api.scheduling import PriorityClass
from volplane.apiserver.tables.columns import NONE, UNKNOWN, TablePrinter, age, age_of, columns, labels

_ROLE = "node-role.kubernetes.io/"


def _node(node: Node, now: datetime) -> list[Any]:
    info = node.status.node_info
    return [
        node.name,
        _node_status(node),
        _roles(node),
        age_of(node, now),
        info.kubelet_version,
        _address(node, "InternalIP"),
        _address(node, "ExternalIP"),
        info.os_image or UNKNOWN,
        info.kernel_version or UNKNOWN,
        info.container_runtime_version or UNKNOWN,
    ]


def _node_status(node: Node) -> str:
    ready = next((c.status for c in node.status.conditions if c.type == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"]
    return ",".join([*words, "SchedulingDisabled"] if node.spec.unschedulable else words)


def _roles(node: Node) -> str:
    given = node.metadata.labels
    found = {key.removeprefix(_ROLE) for key in given if key.startswith(_ROLE)}
    found.add(given.get("kubernetes.io/role", ""))
    return ",".join(sorted(found - {""})) or NONE


def _address(node: Node, kind: str) -> str:
    return next((a.address for a in node.status.addresses if a.type == kind), NONE)


def _event(event: Event, now: datetime) -> list[Any]:
    first = age(event.first_timestamp or event.event_time, now)
    last = age(event.last_timestamp, now) if event.last_timestamp else first
    count = event.count or 1
    if event.series is not None:
        last, count = age(event.series.last_observed_time, now), event.series.count
    subject = event.involved_object
    kind = subject.kind.lower()
    return [
        last,
        event.type,
        event.reason,
        f"{kind}/{subject.name}" if subject.name else kind,
        subject.field_path,
        _source(event),
        event.message.strip(),
        first,
        count,
        event.name,
    ]


def _source(event: Event) -> str:
    component = event.source.component or event.reporting_component
    instance = event.source.host or event.reporting_instance
    return f"{component}, {instance}" if instance else component


def _namespace(one: Namespace, now: datetime) -> list[Any]:
    return [one.name, one.status.phase, age_of(one, now)]


def _lease(lease: Lease, now: datetime) -> list[Any]:
    return [lease.name, lease.spec.holder_identity or "", age_of(lease, now)]


def _secret(secret: Secret, now: datetime) -> list[Any]:
    return [secret.name, secret.type, len(secret.data), age_of(secret, now)]


def _config_map(one: ConfigMap, now: datetime) -> list[Any]:
    return [one.name, len(one.data) + len(one.binary_data), age_of(one, now)]


def _account(account: ServiceAccount, now: datetime) -> list[Any]:
    return [account.name, age_of(account, now)]


def _service(service: Service, now: datetime) -> list[Any]:
    spec = service.spec
    ports = (
        f"{port.port}:{port.node_port}/{port.protocol}" if port.node_port else f"{port.port}/{port.protocol}"
        for port in spec.ports
    )
    outside = [i.ip or i.hostname for i in service.status.load_balancer.ingress] or list(spec.external_ips)
    if spec.type == "ExternalName":
        outside = [spec.external_name]
    return [
        service.name,
        spec.type,
        next(iter(spec.cluster_ips), spec.cluster_ip) or NONE,
        ",".join(outside) or ("<pending>" if spec.type == "LoadBalancer" else NONE),
        ",".join(ports) or NONE,
        age_of(service, now),
        labels(spec.selector),
    ]


def _priority(one: PriorityClass, now: datetime) -> list[Any]:
    return [one.name, one.value, one.global_default, age_of(one, now), one.preemption_policy or ""]


def _runtime(one: RuntimeClass, now: datetime) -> list[Any]:
    return [one.name, one.handler, age_of(one, now)]


PRINTERS: Mapping[str, TablePrinter] = {
    "nodes": TablePrinter(
        columns(
            "Name",
            "Status",
            "Roles",
            "Age",
            "Version",
            "Internal-IP*",
            "External-IP*",
            "OS-Image*",
            "Kernel-Version*",
            "Container-Runtime*",
        ),
        _node,
    ),
    "events": TablePrinter(
        columns(
            "Last Seen",
            "Type",
            "Reason",
            "Object",
            "Subobject*",
            "Source*",
            "Message",
            "First Seen*",
            "Count*",
            "Name*",
        ),
        _event,
    ),
    "namespaces": TablePrinter(columns("Name", "Status", "Age"), _namespace),
    "leases.coordination.k8s.io": TablePrinter(columns("Name", "Holder", "Age"), _lease),
    "secrets": TablePrinter(columns("Name", "Type", "Data", "Age"), _secret),
    "configmaps": TablePrinter(columns("Name", "Data", "Age"), _config_map),
    "serviceaccounts": TablePrinter(columns("Name", "Age"), _account),
    "services": TablePrinter(
        columns("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "Selector*"), _service
    ),
    "priorityclasses.scheduling.k8s.io": TablePrinter(
        columns("Name", "Value#integer", "Global-Default#boolean", "Age", "PreemptionPolicy"), _priority
    ),
    "runtimeclasses.node.k8s.io": TablePrinter(columns("Name", "Handler", "Age"), _runtime),
}
