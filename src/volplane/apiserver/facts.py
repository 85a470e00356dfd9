"""What is known of each kind without running code: allowed writes, answers to a delete, selectors.

The tables follow the API's CRUD rules kind by kind; `Strategy.facts` holds the row of its kind. Custom
resources have one row together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from volplane.api import name_validation
from volplane.api.kinds import Kind


class SelectableValue(Struct, frozen=True):
    """A value that field selectors may ask for."""

    path: str  # in the object's JSON
    absent: str = ""  # what it counts as where the object does not have it


class Facts(Struct, frozen=True):
    status: bool = False  # has a /status endpoint: the main endpoint then ignores status
    status_metadata: bool = True  # may /status change metadata?
    unconditional_update: bool = True  # PUT without resourceVersion
    create_on_update: bool = False  # PUT on a missing object creates it
    generation: str = (
        ""  # "": none, "counted": 1 on create and +1 per change, "late": absent until the first change
    )
    answers_deleted: bool = False  # DELETE answers the last object (else a Status)
    propagation: str = "Background"
    fields: Mapping[str, SelectableValue] = {}
    legacy_fields: bool = False  # words its refusal of an unknown field selector in the old way
    check_name: Callable[[str, bool], list[str]] = name_validation.subdomain_problems
    qualified_finalizers: bool = True  # refuses finalizers without a domain
    grace: Callable[[Any, int | None], int] | None = None


def pod_grace(pod: Any, requested: int | None) -> int:
    """A pod that never ran or no longer runs has nothing to stop."""
    if not pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed"):
        return 0
    given = pod.spec.termination_grace_period_seconds if requested is None else requested
    seconds = 30 if given is None else int(given)
    return seconds if seconds >= 0 else 1


def facts_of(kind: Kind) -> Facts:
    resource = kind.resource
    custom = kind.type is None
    selectable = _FIELDS.get(resource, {})
    return Facts(
        status=kind.subresource("status") is not None,
        status_metadata=not custom and resource not in _STATUS_KEEPS_METADATA,
        unconditional_update=not custom and resource not in _UPDATE_NEEDS_REVISION,
        create_on_update=resource in _CREATE_ON_UPDATE,
        generation="counted" if custom or resource in _COUNTED else _LATE.get(resource, ""),
        answers_deleted=resource in _ANSWERS_DELETED,
        propagation=_PROPAGATION.get(resource, "Background"),
        fields={
            label: SelectableValue(path, _ABSENT.get(label, ""))
            for label, path in {**_ALWAYS, **selectable}.items()
        },
        legacy_fields=bool(selectable),
        check_name=_NAMES.get(resource, name_validation.subdomain_problems),
        qualified_finalizers=not custom and resource not in _ANY_FINALIZERS,
        grace=pod_grace if resource == "pods" else None,
    )


_STATUS_KEEPS_METADATA = frozenset({"volumeattachments.storage.k8s.io"})
_UPDATE_NEEDS_REVISION = frozenset(
    {
        "csidrivers.storage.k8s.io",
        "csinodes.storage.k8s.io",
        "csistoragecapacities.storage.k8s.io",
        "volumeattachments.storage.k8s.io",
        "leases.coordination.k8s.io",
        "runtimeclasses.node.k8s.io",
        "poddisruptionbudgets.policy",
        "customresourcedefinitions.apiextensions.k8s.io",
    }
)
_RBAC = ("roles", "rolebindings", "clusterroles", "clusterrolebindings")
_CREATE_ON_UPDATE = frozenset(
    {
        "leases.coordination.k8s.io",
        "events",
        "events.events.k8s.io",
        "endpoints",
        "services",
        "limitranges",
        "runtimeclasses.node.k8s.io",
        *(f"{plural}.rbac.authorization.k8s.io" for plural in _RBAC),
    }
)
_COUNTED = frozenset(
    {
        "pods",
        "deployments.apps",
        "replicasets.apps",
        "statefulsets.apps",
        "daemonsets.apps",
        "jobs.batch",
        "cronjobs.batch",
        "poddisruptionbudgets.policy",
        "replicationcontrollers",
        "podtemplates",
        "priorityclasses.scheduling.k8s.io",
        "customresourcedefinitions.apiextensions.k8s.io",
    }
)
_LATE = {"csidrivers.storage.k8s.io": "late"}
_ANSWERS_DELETED = frozenset(
    {
        "namespaces",
        "persistentvolumes",
        "persistentvolumeclaims",
        "pods",
        "services",
        "serviceaccounts",
        "resourcequotas",
        "podtemplates",
        "csidrivers.storage.k8s.io",
        "csinodes.storage.k8s.io",
        "storageclasses.storage.k8s.io",
        "volumeattachments.storage.k8s.io",
        "volumeattributesclasses.storage.k8s.io",
        "resourceclaims.resource.k8s.io",
        "resourceclaimtemplates.resource.k8s.io",
        "resourceslices.resource.k8s.io",
        "deviceclasses.resource.k8s.io",
    }
)
_ANY_FINALIZERS = frozenset({"customresourcedefinitions.apiextensions.k8s.io"})
_PROPAGATION = {"jobs.batch": "Orphan", "replicationcontrollers": "Orphan"}
_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_ALWAYS = {"metadata.name": "metadata.name", "metadata.namespace": "metadata.namespace"}
_ABSENT = {"spec.hostNetwork": "false", "spec.unschedulable": "false", "status.successful": "0"}
_FIELDS: Mapping[str, Mapping[str, str]] = {
    "pods": {
        "spec.nodeName": "spec.nodeName",
        "spec.host": "spec.nodeName",
        "spec.restartPolicy": "spec.restartPolicy",
        "spec.schedulerName": "spec.schedulerName",
        "spec.serviceAccountName": "spec.serviceAccountName",
        "spec.hostNetwork": "spec.hostNetwork",
        "status.phase": "status.phase",
        "status.podIP": "status.podIP",
        "status.podIPs": "status.podIPs",
        "status.nominatedNodeName": "status.nominatedNodeName",
    },
    "events": {
        **{f"involvedObject.{f}": f"involvedObject.{f}" for f in _REFERENCE},
        "reason": "reason",
        "reportingComponent": "reportingComponent",
        "source": "source.component",
        "type": "type",
    },
    "events.events.k8s.io": {
        # They are read in the form they are stored in, which is v1's.
        **{f"regarding.{f}": f"involvedObject.{f}" for f in _REFERENCE},
        "reason": "reason",
        "reportingController": "reportingComponent",
        "type": "type",
    },
    "nodes": {"spec.unschedulable": "spec.unschedulable"},
    "namespaces": {"status.phase": "status.phase"},
    "secrets": {"type": "type"},
    "services": {"spec.clusterIP": "spec.clusterIP", "spec.type": "spec.type"},
    "jobs.batch": {"status.successful": "status.succeeded"},
    "resourceslices.resource.k8s.io": {"spec.nodeName": "spec.nodeName", "spec.driver": "spec.driver"},
    "certificatesigningrequests.certificates.k8s.io": {"spec.signerName": "spec.signerName"},
}
_NAMES: Mapping[str, Callable[[str, bool], list[str]]] = {
    "namespaces": name_validation.label_problems,
    "services": name_validation.service_problems,
    "statefulsets.apps": name_validation.label_problems,  # it becomes the pods' host names
    **{f"{plural}.rbac.authorization.k8s.io": name_validation.path_segment_problems for plural in _RBAC},
}
