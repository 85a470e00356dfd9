"""Functions that compute table cells. The `columns` of a kind refer to them by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from volplane.api import batch, core, discovery, events, rbac
from volplane.api.certificates import CertificateSigningRequestStatus
from volplane.api.meta import LabelSelector, OwnerReference
from volplane.api.selectors import InvalidSelector, LabelMatcher
from volplane.api.storage import StorageClass, TokenRequest
from volplane.apiserver.strategies.events_k8s_io import to_core_event
from volplane.base import clock
from volplane.base.units import human_age
from volplane.rules import binding, classes

NONE, UNKNOWN, UNSET = "<none>", "<unknown>", "<unset>"
_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
_ROLE = "node-role.kubernetes.io/"
_MAX_LISTED = 3  # endpoints and ports in a cell; the rest is counted


# Values of any kind


def age(stamp: str | None, now: datetime) -> str:
    return human_age((now - clock.parse(stamp)).total_seconds()) if stamp else UNKNOWN


def duration(seconds: float) -> str:
    return human_age(seconds)


def text(value: object) -> str:
    return str(value)


def count(items: Sequence[Any] | Mapping[str, Any]) -> int:
    return len(items)


def join_words(words: Sequence[str]) -> str:
    return ",".join(words) or NONE


def labels(given: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(given.items())) or NONE


def selector(given: LabelSelector | None, empty: str = NONE) -> str:
    if given is None:
        return NONE
    try:
        return str(LabelMatcher.of(given)) or empty
    except InvalidSelector:
        return "<error>"


def selector_or_empty(given: LabelSelector | None) -> str:
    return selector(given, empty="")


def names(containers: Iterable[core.Container] | None) -> str:
    return ",".join(c.name for c in containers or ())


def images(containers: Iterable[core.Container] | None) -> str:
    return ",".join(c.image for c in containers or ())


# Storage


def phase(obj: core.PersistentVolume | core.PersistentVolumeClaim) -> str:
    return "Terminating" if obj.is_deleting else obj.status.phase


def storage(amounts: Mapping[str, str]) -> str:
    return amounts.get("storage", "0")


def access_modes(modes: Iterable[str]) -> str:
    given = set(modes)
    return ",".join(short for mode, short in _MODES.items() if mode in given)


def bound_size_and_modes(claim: core.PersistentVolumeClaim) -> list[str]:
    if not claim.spec.volume_name:
        return ["", ""]
    return [storage(claim.status.capacity), access_modes(claim.status.access_modes)]


def claim_class(claim: core.PersistentVolumeClaim) -> str:
    return binding.claim_class(claim) or ""


def volume_class(volume: core.PersistentVolume) -> str:
    return binding.volume_class(volume)


def claim_ref(ref: core.ObjectReference) -> str:
    return f"{ref.namespace}/{ref.name}"


def class_name(one: StorageClass) -> str:
    return f"{one.name} (default)" if classes.is_default(one) else one.name


def audiences(requests: Sequence[TokenRequest]) -> str:
    return ",".join(request.audience for request in requests) if requests else UNSET


# Nodes and events


def node_status(node: core.Node) -> str:
    ready = next((c.status for c in node.status.conditions if c.type == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"]
    return ",".join([*words, "SchedulingDisabled"] if node.spec.unschedulable else words)


def node_roles(given: Mapping[str, str]) -> str:
    found = {key.removeprefix(_ROLE) for key in given if key.startswith(_ROLE)}
    found.add(given.get("kubernetes.io/role", ""))
    return ",".join(sorted(found - {""})) or NONE


def internal_ip(addresses: Iterable[core.NodeAddress]) -> str:
    return next((a.address for a in addresses if a.type == "InternalIP"), NONE)


def external_ip(addresses: Iterable[core.NodeAddress]) -> str:
    return next((a.address for a in addresses if a.type == "ExternalIP"), NONE)


def event(one: core.Event, now: datetime) -> list[Any]:
    first = age(one.first_timestamp or one.event_time, now)
    last = age(one.last_timestamp, now) if one.last_timestamp else first
    times = one.count or 1
    if one.series is not None:
        last, times = age(one.series.last_observed_time, now), one.series.count
    subject = one.involved_object
    kind = subject.kind.lower()
    component = one.source.component or one.reporting_component
    instance = one.source.host or one.reporting_instance
    return [
        last,
        one.type,
        one.reason,
        f"{kind}/{subject.name}" if subject.name else kind,
        subject.field_path,
        f"{component}, {instance}" if instance else component,
        one.message.strip(),
        first,
        times,
        one.name,
    ]


def events_k8s_io_event(one: events.Event, now: datetime) -> list[Any]:
    return event(to_core_event(one), now)


def config_map_keys(one: core.ConfigMap) -> int:
    return len(one.data) + len(one.binary_data)


def component_health(conditions: Iterable[core.ComponentCondition]) -> list[str]:
    condition = next((c for c in conditions if c.type == "Healthy"), None)
    if condition is None:
        return ["Unknown", "", ""]
    status = {"True": "Healthy", "False": "Unhealthy"}.get(condition.status, "Unknown")
    return [status, condition.message, condition.error]


def quota_usage(status: core.ResourceQuotaStatus) -> list[str]:
    amounts = [
        (name, f"{name}: {status.used.get(name, '0')}/{hard}") for name, hard in sorted(status.hard.items())
    ]
    requests = ", ".join(text for name, text in amounts if not name.startswith("limits."))
    limits = ", ".join(text for name, text in amounts if name.startswith("limits."))
    return [requests, limits]


# Services


def cluster_ip(spec: core.ServiceSpec) -> str:
    return next(iter(spec.cluster_ips), spec.cluster_ip) or NONE


def external_addresses(service: core.Service) -> str:
    spec = service.spec
    if spec.type == "ExternalName":
        return spec.external_name or NONE
    found = [i.ip or i.hostname for i in service.status.load_balancer.ingress] or list(spec.external_ips)
    return ",".join(found) or ("<pending>" if spec.type == "LoadBalancer" else NONE)


def service_ports(ports: Iterable[core.ServicePort]) -> str:
    found = (
        f"{p.port}:{p.node_port}/{p.protocol}" if p.node_port else f"{p.port}/{p.protocol}" for p in ports
    )
    return ",".join(found) or NONE


def endpoint_addresses(subsets: Sequence[core.EndpointSubset]) -> str:
    bare = [a.ip for subset in subsets if not subset.ports for a in subset.addresses]
    with_port = [
        f"{f'[{address.ip}]' if ':' in address.ip else address.ip}:{port.port}"
        for subset in subsets
        for port in subset.ports
        for address in subset.addresses
    ]
    return _first_few([*bare, *with_port], "") if subsets else NONE


def slice_ports(ports: Iterable[discovery.EndpointPort]) -> str:
    return _first_few([str(p.port) if p.port is not None else p.name or "*" for p in ports], UNSET)


def slice_addresses(endpoints: Iterable[discovery.Endpoint]) -> str:
    return _first_few([address for endpoint in endpoints for address in endpoint.addresses], UNSET)


def _first_few(words: list[str], empty: str) -> str:
    text = ",".join(words[:_MAX_LISTED]) or empty
    return f"{text} + {len(words) - _MAX_LISTED} more..." if len(words) > _MAX_LISTED else text


# Workloads


def ready_replicas(one: Any) -> str:
    desired = 1 if one.spec.replicas is None else one.spec.replicas
    return f"{one.status.ready_replicas}/{desired}"


def controller_owner(references: Iterable[OwnerReference]) -> str:
    owner = next((r for r in references if r.controller), None)
    if owner is None:
        return NONE
    group = owner.api_version.rpartition("/")[0]
    kind = f"{owner.kind}.{group}" if group else owner.kind
    return f"{kind.lower()}/{owner.name}"


def job_status(job: batch.Job) -> str:
    conditions = {c.type for c in job.status.conditions if c.status == "True"}
    ended = next((word for word in ("Complete", "Failed") if word in conditions), "")
    if ended or job.is_deleting:
        return ended or "Terminating"
    meanwhile = ("Suspended", "FailureTarget", "SuccessCriteriaMet")
    return next((word for word in meanwhile if word in conditions), "Running")


def job_completions(job: batch.Job) -> str:
    done, parallel = job.status.succeeded, job.spec.parallelism or 0
    if job.spec.completions is not None:
        return f"{done}/{job.spec.completions}"
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def job_duration(status: batch.JobStatus, now: datetime) -> str:
    if status.start_time is None:
        return ""
    end = clock.parse(status.completion_time) if status.completion_time else now
    return human_age((end - clock.parse(status.start_time)).total_seconds())


# Access and devices


def role(reference: rbac.RoleRef) -> str:
    return f"{reference.kind}/{reference.name}"


def subjects(given: Iterable[rbac.Subject]) -> list[str]:
    by_kind: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for subject in given:
        account = subject.kind == "ServiceAccount"
        name = f"{subject.namespace}/{subject.name}" if account else subject.name
        by_kind.setdefault(subject.kind, []).append(name)
    return [", ".join(by_kind[kind]) for kind in ("User", "Group", "ServiceAccount")]


def request_condition(status: CertificateSigningRequestStatus) -> str:
    types = {c.type for c in status.conditions}
    words = ["Denied" if "Denied" in types else "Approved" if "Approved" in types else "Pending"]
    words += ["Failed"] if "Failed" in types else []
    words += ["Issued"] if status.certificate else []
    return ",".join(words)
