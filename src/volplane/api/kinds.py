"""The built-in kinds: where each lives, what it is called, and what may be done with it.

Custom resources get a `Kind` of their own at run time (`type` is then None), so whatever serves or asks
for objects goes by `Kind`, never by Struct alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec import Struct, defstruct

from volplane.api import (
    apiextensions,
    apps,
    authentication,
    authorization,
    autoscaling,
    batch,
    certificates,
    coordination,
    core,
    discovery,
    events,
    noderuntime,
    policy,
    rbac,
    resource,
    scheduling,
    snapshot,
    storage,
)
from volplane.api.meta import PartialObjectMetadata, Resource

CRUD = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
CREATE = ("create",)
READ_WRITE = ("get", "patch", "update")


class Subresource(Struct, frozen=True):
    """A path below an object; its kind is the parent's unless it says otherwise."""

    name: str
    verbs: tuple[str, ...] = READ_WRITE
    kind: str = ""
    group: str = ""
    version: str = ""


Pruner = Callable[[dict[str, Any]], list[str]]


class Kind(Struct, frozen=True):
    """One kind in one version."""

    type: type[Resource] | None
    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = CRUD
    subresources: tuple[Subresource, ...] = ()
    # Of a custom kind, which has no type to say these:
    singular_name: str = ""  # singular, where it is not just the kind
    list_kind_name: str = ""  # the kind of its lists, likewise
    prune: Pruner | None = None  # removes from plain data what the kind does not know, and names it

    @property
    def singular(self) -> str:
        return self.singular_name or self.kind.lower()

    @property
    def list_kind(self) -> str:
        return self.list_kind_name or f"{self.kind}List"

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The plural with its group, as messages name it: `pods`, `volumeattachments.storage.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def base_path(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of the collection, an object, or something below it."""
        parts = [self.base_path]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [p for p in (self.plural, name, subresource) if p]
        return "/".join(parts)

    def subresource(self, name: str) -> Subresource | None:
        return next((s for s in self.subresources if s.name == name), None)


STATUS = Subresource("status")
SCALE = Subresource("scale", kind="Scale", group="autoscaling", version="v1")
ALL_CATEGORY = ("all",)
CONNECT = ("create", "get")
PROXY = ("create", "delete", "get", "patch", "update")


def _pod_subresources() -> tuple[Subresource, ...]:
    return (
        Subresource("attach", CONNECT, kind="PodAttachOptions"),
        Subresource("binding", CREATE, kind="Binding"),
        Subresource("ephemeralcontainers"),
        Subresource("eviction", CREATE, kind="Eviction", group="policy", version="v1"),
        Subresource("exec", CONNECT, kind="PodExecOptions"),
        Subresource("log", ("get",)),
        Subresource("portforward", CONNECT, kind="PodPortForwardOptions"),
        Subresource("resize"),
        STATUS,
    )


_NODE = (Subresource("proxy", PROXY, kind="NodeProxyOptions"), STATUS)


def _core(type: type[Resource], plural: str, *short: str, **more: object) -> Kind:
    return Kind(type, "", "v1", type.__name__, plural, short_names=short, **more)  # type: ignore[arg-type]


def _in(group: str, type: type[Resource], plural: str, *short: str, **more: object) -> Kind:
    return Kind(type, group, "v1", type.__name__, plural, short_names=short, **more)  # type: ignore[arg-type]


_READ_AND_DELETE = (
    "delete",
    "deletecollection",
    "get",
    "list",
    "watch",
)  # of what there is none, and will be none
_STORAGE = "storage.k8s.io"
_RBAC = "rbac.authorization.k8s.io"
_WORKLOAD = (SCALE, STATUS)

ALL: tuple[Kind, ...] = (
    _core(core.Pod, "pods", "po", categories=ALL_CATEGORY, subresources=_pod_subresources()),
    _core(core.PersistentVolumeClaim, "persistentvolumeclaims", "pvc", subresources=(STATUS,)),
    _core(core.PersistentVolume, "persistentvolumes", "pv", namespaced=False, subresources=(STATUS,)),
    _core(core.Node, "nodes", "no", namespaced=False, subresources=_NODE),
    _core(
        core.Namespace,
        "namespaces",
        "ns",
        namespaced=False,
        verbs=tuple(v for v in CRUD if v != "deletecollection"),
        subresources=(Subresource("finalize", ("update",)), STATUS),
    ),
    _core(core.Event, "events", "ev"),
    _core(core.Secret, "secrets"),
    _core(core.ConfigMap, "configmaps", "cm"),
    _core(
        core.ServiceAccount,
        "serviceaccounts",
        "sa",
        subresources=(
            Subresource("token", CREATE, kind="TokenRequest", group="authentication.k8s.io", version="v1"),
        ),
    ),
    _core(core.Service, "services", "svc", categories=ALL_CATEGORY, subresources=(STATUS,)),
    _core(core.Endpoints, "endpoints", "ep"),
    _core(core.LimitRange, "limitranges", "limits"),
    _core(core.ResourceQuota, "resourcequotas", "quota", subresources=(STATUS,)),
    _core(core.PodTemplate, "podtemplates"),
    _core(
        core.ReplicationController,
        "replicationcontrollers",
        "rc",
        categories=ALL_CATEGORY,
        subresources=_WORKLOAD,
    ),
    _core(core.ComponentStatus, "componentstatuses", "cs", namespaced=False, verbs=("get", "list")),
    _core(core.Binding, "bindings", verbs=CREATE),
    _in("apps", apps.Deployment, "deployments", "deploy", categories=ALL_CATEGORY, subresources=_WORKLOAD),
    _in("apps", apps.ReplicaSet, "replicasets", "rs", categories=ALL_CATEGORY, subresources=_WORKLOAD),
    _in("apps", apps.StatefulSet, "statefulsets", "sts", categories=ALL_CATEGORY, subresources=_WORKLOAD),
    _in("apps", apps.DaemonSet, "daemonsets", "ds", categories=ALL_CATEGORY, subresources=(STATUS,)),
    _in("apps", apps.ControllerRevision, "controllerrevisions"),
    _in("batch", batch.Job, "jobs", categories=ALL_CATEGORY, subresources=(STATUS,)),
    _in("batch", batch.CronJob, "cronjobs", "cj", categories=ALL_CATEGORY, subresources=(STATUS,)),
    _in("policy", policy.PodDisruptionBudget, "poddisruptionbudgets", "pdb", subresources=(STATUS,)),
    _in(_STORAGE, storage.StorageClass, "storageclasses", "sc", namespaced=False),
    _in(_STORAGE, storage.VolumeAttachment, "volumeattachments", namespaced=False, subresources=(STATUS,)),
    _in(_STORAGE, storage.CSIDriver, "csidrivers", namespaced=False),
    _in(_STORAGE, storage.CSINode, "csinodes", namespaced=False),
    _in(_STORAGE, storage.CSIStorageCapacity, "csistoragecapacities"),
    _in(_STORAGE, storage.VolumeAttributesClass, "volumeattributesclasses", "vac", namespaced=False),
    _in("coordination.k8s.io", coordination.Lease, "leases"),
    _in("events.k8s.io", events.Event, "events", "ev"),
    _in("authentication.k8s.io", authentication.TokenReview, "tokenreviews", namespaced=False, verbs=CREATE),
    _in(
        "authentication.k8s.io",
        authentication.SelfSubjectReview,
        "selfsubjectreviews",
        namespaced=False,
        verbs=CREATE,
    ),
    _in(
        "authorization.k8s.io",
        authorization.SubjectAccessReview,
        "subjectaccessreviews",
        namespaced=False,
        verbs=CREATE,
    ),
    _in(
        "authorization.k8s.io",
        authorization.SelfSubjectAccessReview,
        "selfsubjectaccessreviews",
        namespaced=False,
        verbs=CREATE,
    ),
    _in(
        "authorization.k8s.io",
        authorization.SelfSubjectRulesReview,
        "selfsubjectrulesreviews",
        namespaced=False,
        verbs=CREATE,
    ),
    _in(
        "authorization.k8s.io",
        authorization.LocalSubjectAccessReview,
        "localsubjectaccessreviews",
        verbs=CREATE,
    ),
    _in(_RBAC, rbac.Role, "roles"),
    _in(_RBAC, rbac.ClusterRole, "clusterroles", namespaced=False),
    _in(_RBAC, rbac.RoleBinding, "rolebindings"),
    _in(_RBAC, rbac.ClusterRoleBinding, "clusterrolebindings", namespaced=False),
    _in(
        "certificates.k8s.io",
        certificates.CertificateSigningRequest,
        "certificatesigningrequests",
        "csr",
        namespaced=False,
        subresources=(Subresource("approval"), STATUS),
    ),
    _in("scheduling.k8s.io", scheduling.PriorityClass, "priorityclasses", "pc", namespaced=False),
    _in("node.k8s.io", noderuntime.RuntimeClass, "runtimeclasses", namespaced=False),
    _in("discovery.k8s.io", discovery.EndpointSlice, "endpointslices"),
    # Nobody here hands out devices: schedulers and kubelets find none of them, and none can be made.
    _in(
        "resource.k8s.io",
        resource.ResourceClaim,
        "resourceclaims",
        verbs=_READ_AND_DELETE,
        subresources=(STATUS,),
    ),
    _in("resource.k8s.io", resource.ResourceClaimTemplate, "resourceclaimtemplates", verbs=_READ_AND_DELETE),
    _in(
        "resource.k8s.io", resource.ResourceSlice, "resourceslices", namespaced=False, verbs=_READ_AND_DELETE
    ),
    _in("resource.k8s.io", resource.DeviceClass, "deviceclasses", namespaced=False, verbs=_READ_AND_DELETE),
    _in(
        "apiextensions.k8s.io",
        apiextensions.CustomResourceDefinition,
        "customresourcedefinitions",
        "crd",
        "crds",
        namespaced=False,
        categories=("api-extensions",),
        subresources=(STATUS,),
    ),
)

# Objects that are posted to subresources and never stored.
SUBRESOURCE_KINDS: tuple[Kind, ...] = (
    _in("policy", policy.Eviction, "evictions", verbs=CREATE),
    _in("autoscaling", autoscaling.Scale, "scales", verbs=()),
    _in("authentication.k8s.io", authentication.TokenRequest, "tokenrequests", verbs=CREATE),
)

_SNAPSHOTS = "snapshot.storage.k8s.io"
_GROUP_SNAPSHOTS = "groupsnapshot.storage.k8s.io"


def _group(type: type[Resource], plural: str, *short: str, **more: object) -> Kind:
    version = "v1beta2"
    return Kind(type, _GROUP_SNAPSHOTS, version, type.__name__, plural, short_names=short, **more)  # type: ignore[arg-type]


# Kinds that our clients have types for, while a server has them by definition, as custom resources, or not.
CLIENT_KINDS: tuple[Kind, ...] = (
    _in(_SNAPSHOTS, snapshot.VolumeSnapshot, "volumesnapshots", "vs", subresources=(STATUS,)),
    _in(
        _SNAPSHOTS,
        snapshot.VolumeSnapshotContent,
        "volumesnapshotcontents",
        "vsc",
        "vscs",
        namespaced=False,
        subresources=(STATUS,),
    ),
    _in(
        _SNAPSHOTS,
        snapshot.VolumeSnapshotClass,
        "volumesnapshotclasses",
        "vsclass",
        "vsclasses",
        namespaced=False,
    ),
    _group(snapshot.VolumeGroupSnapshot, "volumegroupsnapshots", "vgs", subresources=(STATUS,)),
    _group(
        snapshot.VolumeGroupSnapshotContent,
        "volumegroupsnapshotcontents",
        "vgsc",
        "vgscs",
        namespaced=False,
        subresources=(STATUS,),
    ),
    _group(
        snapshot.VolumeGroupSnapshotClass,
        "volumegroupsnapshotclasses",
        "vgsclass",
        "vgsclasses",
        namespaced=False,
    ),
)

_BY_TYPE = {k.type: k for k in ALL + SUBRESOURCE_KINDS + CLIENT_KINDS}
_BY_KIND = {(k.api_version, k.kind): k for k in ALL + SUBRESOURCE_KINDS}
_BY_PATH = {(k.group, k.version, k.plural): k for k in ALL}


def of(type: type[Resource]) -> Kind:
    return _BY_TYPE[type]


def by_kind(api_version: str, kind: str) -> Kind | None:
    return _BY_KIND.get((api_version, kind))


def by_path(group: str, version: str, plural: str) -> Kind | None:
    return _BY_PATH.get((group, version, plural))


@cache
def define_metadata_only_type(
    group: str, version: str, kind: str, plural: str, *, namespaced: bool
) -> type[Resource]:
    """A type for a kind that has none here, so that clients can follow its objects: their metadata."""
    made: type[Resource] = defstruct(kind, [], bases=(PartialObjectMetadata,), module=__name__)  # type: ignore[assignment]
    _BY_TYPE[made] = Kind(made, group, version, kind, plural, namespaced=namespaced)
    return made
