"""The other kinds with columns: quotas, templates, endpoints, revisions, signing requests, devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from volplane.api import events
from volplane.api.apps import ControllerRevision
from volplane.api.certificates import CertificateSigningRequest
from volplane.api.core import ComponentStatus, Endpoints, PodTemplate, ReplicationController, ResourceQuota
from volplane.api.discovery import EndpointSlice
from volplane.api.resource import ResourceClaim, ResourceSlice
from volplane.apiserver.strategies.events_k8s_io import to_core_event
from volplane.apiserver.tables import cluster
from volplane.apiserver.tables.columns import NONE, UNSET, TablePrinter, age_of, columns, containers, labels
from volplane.base.units import human_age

_SHOWN = 3  # endpoints and ports in a cell; the rest is counted


def _quota(one: ResourceQuota, now: datetime) -> list[Any]:
    used = one.status.used
    amounts = [
        (name, f"{name}: {used.get(name, '0')}/{hard}") for name, hard in sorted(one.status.hard.items())
    ]
    requests = ", ".join(text for name, text in amounts if not name.startswith("limits."))
    limits = ", ".join(text for name, text in amounts if name.startswith("limits."))
    return [one.name, requests, limits, age_of(one, now)]


def _template(one: PodTemplate, now: datetime) -> list[Any]:
    template = one.template
    return [one.name, *containers(template.spec.containers), labels(template.metadata.labels)]


def _replication(one: ReplicationController, now: datetime) -> list[Any]:
    template, status = one.spec.template, one.status
    return [
        one.name,
        one.spec.replicas or 0,
        status.replicas,
        status.ready_replicas,
        age_of(one, now),
        *containers(template.spec.containers if template else ()),
        labels(one.spec.selector),
    ]


def _endpoints(one: Endpoints, now: datetime) -> list[Any]:
    places = [
        f"{f'[{address.ip}]' if ':' in address.ip else address.ip}:{port.port}"
        for subset in one.subsets
        for port in subset.ports
        for address in subset.addresses
    ]
    bare = [a.ip for subset in one.subsets if not subset.ports for a in subset.addresses]
    return [one.name, _few([*bare, *places], "") if one.subsets else NONE, age_of(one, now)]


def _slice(one: EndpointSlice, now: datetime) -> list[Any]:
    ports = [str(port.port) if port.port is not None else port.name or "*" for port in one.ports]
    places = [address for endpoint in one.endpoints for address in endpoint.addresses]
    return [one.name, one.address_type, _few(ports, UNSET), _few(places, UNSET), age_of(one, now)]


def _few(words: list[str], empty: str) -> str:
    text = ",".join(words[:_SHOWN]) or empty
    return f"{text} + {len(words) - _SHOWN} more..." if len(words) > _SHOWN else text


def _revision(one: ControllerRevision, now: datetime) -> list[Any]:
    owner = next((r for r in one.metadata.owner_references if r.controller), None)
    shown = NONE
    if owner is not None:
        group = owner.api_version.rpartition("/")[0]
        kind = f"{owner.kind}.{group}" if group else owner.kind
        shown = f"{kind.lower()}/{owner.name}"
    return [one.name, shown, one.number, age_of(one, now)]


def _request(one: CertificateSigningRequest, now: datetime) -> list[Any]:
    seconds = one.spec.expiration_seconds
    return [
        one.name,
        age_of(one, now),
        one.spec.signer_name or NONE,
        one.spec.username,
        NONE if seconds is None else human_age(seconds),
        _condition(one),
    ]


def _condition(one: CertificateSigningRequest) -> str:
    held = {c.type for c in one.status.conditions}
    words = ["Denied" if "Denied" in held else "Approved" if "Approved" in held else "Pending"]
    words += ["Failed"] if "Failed" in held else []
    words += ["Issued"] if one.status.certificate else []
    return ",".join(words)


def _component(one: ComponentStatus, now: datetime) -> list[Any]:
    condition = next((c for c in one.conditions if c.type == "Healthy"), None)
    if condition is None:
        return [one.name, "Unknown", "", ""]
    status = {"True": "Healthy", "False": "Unhealthy"}.get(condition.status, "Unknown")
    return [one.name, status, condition.message, condition.error]


def _claim(one: ResourceClaim, now: datetime) -> list[Any]:
    return [one.name, ",".join(_claim_states(one)), age_of(one, now)]


def _claim_states(one: ResourceClaim) -> Iterable[str]:
    if one.is_deleting:
        yield "deleted"
    if one.status.allocation is not None:
        yield "allocated"
        if one.status.reserved_for:
            yield "reserved"
    elif not one.is_deleting:
        yield "pending"


def _devices(one: ResourceSlice, now: datetime) -> list[Any]:
    spec = one.spec
    return [one.name, spec.node_name or UNSET, spec.driver, spec.pool.name, age_of(one, now)]


def _event(event: events.Event, now: datetime) -> list[Any]:
    return cluster.PRINTERS["events"].cells(to_core_event(event), now)


def _name_and_age(one: Any, now: datetime) -> list[Any]:
    return [one.name, age_of(one, now)]


PRINTERS: Mapping[str, TablePrinter] = {
    "resourcequotas": TablePrinter(columns("Name", "Request", "Limit", "Age"), _quota),
    "podtemplates": TablePrinter(columns("Name", "Containers", "Images", "Pod Labels"), _template),
    "replicationcontrollers": TablePrinter(
        columns(
            "Name",
            "Desired#integer",
            "Current#integer",
            "Ready#integer",
            "Age",
            "Containers*",
            "Images*",
            "Selector*",
        ),
        _replication,
    ),
    "endpoints": TablePrinter(columns("Name", "Endpoints", "Age"), _endpoints),
    "endpointslices.discovery.k8s.io": TablePrinter(
        columns("Name", "AddressType", "Ports", "Endpoints", "Age"), _slice
    ),
    "controllerrevisions.apps": TablePrinter(columns("Name", "Controller", "Revision", "Age"), _revision),
    "certificatesigningrequests.certificates.k8s.io": TablePrinter(
        columns("Name", "Age", "SignerName", "Requestor", "RequestedDuration", "Condition"), _request
    ),
    "componentstatuses": TablePrinter(columns("Name", "Status", "Message", "Error"), _component),
    "resourceclaims.resource.k8s.io": TablePrinter(columns("Name", "State", "Age"), _claim),
    "resourceclaimtemplates.resource.k8s.io": TablePrinter(columns("Name", "Age"), _name_and_age),
    "resourceslices.resource.k8s.io": TablePrinter(
        columns("Name", "Node", "Driver", "Pool", "Age"), _devices
    ),
    "deviceclasses.resource.k8s.io": TablePrinter(columns("Name", "Age"), _name_and_age),
    "events.events.k8s.io": TablePrinter(cluster.PRINTERS["events"].columns, _event),
}
