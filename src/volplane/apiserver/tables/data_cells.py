"""Cells of kinds that nothing here acts on. Their types are defined at run time, so parameters are `Any`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

NONE, UNKNOWN, UNSET = "<none>", "<unknown>", "<unset>"
_MIGRATION_STATES = ("Running", "Failed", "Succeeded")
_MAX_METRICS, _MAX_SERVERS = 2, 3  # in a cell; the rest is counted


def param_kind(kind: Any) -> str:
    return f"{kind.api_version}/{kind.kind}" if kind is not None else UNSET


def param_ref(reference: Any) -> str:
    if reference is None:
        return UNSET
    if reference.name:
        return f"{reference.namespace}/{reference.name}" if reference.namespace else str(reference.name)
    return "*"


def api_service(service: Any) -> str:
    return f"{service.namespace}/{service.name}" if service is not None else "Local"


def api_service_available(conditions: Iterable[Any] | None) -> str:
    for condition in conditions or ():
        if condition.type == "Available":
            status = str(condition.status)
            return status if status == "True" or not condition.reason else f"{status} ({condition.reason})"
    return "Unknown"


def storage_versions(versions: Sequence[Any] | None) -> str:
    """The version that each API server writes: `server-1=v1`."""
    words = [f"{version.api_server_i_d}={version.encoding_version}" for version in versions or ()]
    shown = ",".join(words[:_MAX_SERVERS])
    if len(words) > _MAX_SERVERS:
        return f"{shown} + {len(words) - _MAX_SERVERS} more..."
    return shown or UNSET


def certificate_request_state(conditions: Iterable[Any] | None) -> str:
    ended = [c.type for c in conditions or () if c.type in ("Issued", "Denied", "Failed")]
    return ended[-1] if ended else "Pending"


def migration_status(conditions: Iterable[Any] | None) -> str:
    reached = [c.type for c in conditions or () if c.status == "True" and c.type in _MIGRATION_STATES]
    return reached[-1] if reached else "Unknown"


def missing_priority_level(conditions: Iterable[Any] | None) -> str:
    return next((str(c.status) for c in conditions or () if c.type == "Dangling"), "?")


# Networking


def ingress_hosts(rules: Iterable[Any] | None) -> str:
    hosts = [rule.host for rule in rules or () if rule.host]
    return ",".join(hosts) or "*"


def ingress_addresses(entries: Iterable[Any] | None) -> str:
    return ",".join(sorted({entry.ip or entry.hostname for entry in entries or ()}))


def ingress_ports(tls: Sequence[Any] | None) -> str:
    return "80, 443" if tls else "80"


def ingress_class_parameters(parameters: Any) -> str:
    if parameters is None:
        return NONE
    group = f".{parameters.api_group}" if parameters.api_group else ""
    return f"{parameters.kind}{group}/{parameters.name}"


def parent_ref(parent: Any) -> str:
    if parent is None:
        return NONE
    namespace = f"/{parent.namespace}" if parent.namespace else ""
    return f"{group_resource(parent).lower()}{namespace}/{parent.name}"


def group_resource(resource: Any) -> str:
    if resource is None:
        return ""
    return f"{resource.resource}.{resource.group}" if resource.group else str(resource.resource)


# Autoscaling


def scale_target(target: Any) -> str:
    return f"{target.kind}/{target.name}" if target is not None else ""


def cpu_target(autoscaler: Any) -> str:
    """The only metric of autoscaling/v1."""
    target = getattr(autoscaler.spec, "target_c_p_u_utilization_percentage", None)
    current = getattr(autoscaler.status, "current_c_p_u_utilization_percentage", None)
    shown = [UNKNOWN if value is None else f"{value}%" for value in (current, target)]
    return f"cpu: {'/'.join(shown)}"


def metric_targets(autoscaler: Any) -> str:
    """Current and wanted values of the first metrics: `cpu: 50%/80%`."""
    metrics = autoscaler.spec.metrics if autoscaler.spec is not None else ()
    current = autoscaler.status.current_metrics if autoscaler.status is not None else ()
    words = [_metric(metric, current[at] if at < len(current) else None) for at, metric in enumerate(metrics)]
    if not words:
        return NONE
    shown = ", ".join(words[:_MAX_METRICS])
    return f"{shown} + {len(words) - _MAX_METRICS} more..." if len(words) > _MAX_METRICS else shown


def _metric(wanted: Any, current: Any) -> str:
    kind = {"ContainerResource": "container_resource"}.get(wanted.type, wanted.type.lower())
    source, now = getattr(wanted, kind, None), getattr(current, kind, None)
    if source is None:
        return UNKNOWN
    prefix = f"{source.name}: " if kind in ("resource", "container_resource") else ""
    target, value = source.target, now.current if now is not None else None
    if target.average_utilization is not None:
        used = value.average_utilization if value is not None else None
        return f"{prefix}{UNKNOWN if used is None else f'{used}%'}/{target.average_utilization}%"
    if target.average_value is not None:
        used = value.average_value if value is not None else None
        suffix = "" if kind in ("resource", "container_resource", "pods") else " (avg)"
        return f"{prefix}{used or UNKNOWN}/{target.average_value}{suffix}"
    return f"{prefix}{(value.value if value is not None else None) or UNKNOWN}/{target.value}"


# Devices


def resource_claim_state(claim: Any) -> str:
    words = ["deleted"] if claim.is_deleting else []
    if claim.status is not None and claim.status.allocation is not None:
        words += ["allocated", "reserved"] if claim.status.reserved_for else ["allocated"]
    elif not claim.is_deleting:
        words.append("pending")
    return ",".join(words)
