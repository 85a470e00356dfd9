"""Default values, by type, wherever a type stands: in a pod, in a template, in a claim template.

As in Kubernetes, where `SetDefaults_PodSpec` runs on every PodSpec: `VALUES` and `FUNCTIONS` say what a type
gets, and a traversal that is compiled for each kind visits only the fields below which there is something to
set. An object gets its own defaults before its fields get theirs. A field that is set, even to zero by a
pointer, is left alone; applying defaults twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from msgspec import structs

from volplane.api.apps import (
    DaemonSet,
    Deployment,
    ReplicaSet,
    RollingUpdateDaemonSet,
    RollingUpdateDeployment,
    RollingUpdateStatefulSetStrategy,
    StatefulSet,
    StatefulSetPersistentVolumeClaimRetentionPolicy,
)
from volplane.api.batch import CronJob, Job, PodFailurePolicyOnPodConditionsPattern
from volplane.api.core import (
    ConfigMapVolumeSource,
    Container,
    ContainerPort,
    DownwardAPIVolumeSource,
    EmptyDirVolumeSource,
    EndpointPort,
    EphemeralContainer,
    GRPCAction,
    HostPathVolumeSource,
    HTTPGetAction,
    ImageVolumeSource,
    ISCSIVolumeSource,
    LimitRangeItem,
    Node,
    ObjectFieldSelector,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    Pod,
    PodSecurityContext,
    PodSpec,
    Probe,
    ProjectedVolumeSource,
    RBDVolumeSource,
    ReplicationController,
    ResourceFieldSelector,
    Secret,
    SecretVolumeSource,
    Service,
    ServiceAccountTokenProjection,
    ServicePort,
    Volume,
)
from volplane.api.object import Object, schema
from volplane.api.rbac import RoleRef, Subject
from volplane.api.scheduling import PriorityClass
from volplane.api.storage import CSIDriver, StorageClass
from volplane.apiserver.struct_edit import map_items, replace_fields, set_defaults

FILE_MODE = 0o644
GRACE_SECONDS = 30
MAX_INT32 = (1 << 31) - 1
RBAC_GROUP = "rbac.authorization.k8s.io"

VALUES: Mapping[type[Object], Mapping[str, Any]] = {
    # Pods
    PodSpec: {
        "dns_policy": "ClusterFirst",
        "restart_policy": "Always",
        "security_context": PodSecurityContext(),
        "termination_grace_period_seconds": GRACE_SECONDS,
        "scheduler_name": "default-scheduler",
    },
    Pod: {"spec.enable_service_links": True},
    Container: {
        "termination_message_path": "/dev/termination-log",
        "termination_message_policy": "File",
    },
    EphemeralContainer: {
        "termination_message_path": "/dev/termination-log",
        "termination_message_policy": "File",
    },
    ContainerPort: {"protocol": "TCP"},
    Probe: {"timeout_seconds": 1, "period_seconds": 10, "success_threshold": 1, "failure_threshold": 3},
    HTTPGetAction: {"path": "/", "scheme": "HTTP"},
    GRPCAction: {"service": ""},
    ObjectFieldSelector: {"api_version": "v1"},
    # Go always writes the divisor: a template that kubectl has read and written must stay the same.
    ResourceFieldSelector: {"divisor": "0"},
    # Volumes
    HostPathVolumeSource: {"type": ""},
    SecretVolumeSource: {"default_mode": FILE_MODE},
    ConfigMapVolumeSource: {"default_mode": FILE_MODE},
    DownwardAPIVolumeSource: {"default_mode": FILE_MODE},
    ProjectedVolumeSource: {"default_mode": FILE_MODE},
    ServiceAccountTokenProjection: {"expiration_seconds": 3600},
    ISCSIVolumeSource: {"iscsi_interface": "default"},
    RBDVolumeSource: {"pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"},
    PersistentVolumeClaim: {"status.phase": "Pending"},
    PersistentVolumeClaimSpec: {"volume_mode": "Filesystem"},
    PersistentVolume: {
        "spec.persistent_volume_reclaim_policy": "Retain",
        "spec.volume_mode": "Filesystem",
        "status.phase": "Pending",
    },
    StorageClass: {"reclaim_policy": "Delete", "volume_binding_mode": "Immediate"},
    CSIDriver: {
        "spec.attach_required": True,
        "spec.pod_info_on_mount": False,
        "spec.storage_capacity": False,
        "spec.fs_group_policy": "ReadWriteOnceWithFSType",
        "spec.volume_lifecycle_modes": ("Persistent",),
        "spec.requires_republish": False,
        "spec.se_linux_mount": False,
    },
    # Workloads
    Deployment: {
        "spec.replicas": 1,
        "spec.revision_history_limit": 10,
        "spec.progress_deadline_seconds": 600,
        "spec.strategy.type": "RollingUpdate",
    },
    ReplicaSet: {"spec.replicas": 1},
    ReplicationController: {"spec.replicas": 1},
    DaemonSet: {"spec.revision_history_limit": 10, "spec.update_strategy.type": "RollingUpdate"},
    StatefulSet: {
        "spec.replicas": 1,
        "spec.revision_history_limit": 10,
        "spec.pod_management_policy": "OrderedReady",
        "spec.persistent_volume_claim_retention_policy": StatefulSetPersistentVolumeClaimRetentionPolicy(),
    },
    StatefulSetPersistentVolumeClaimRetentionPolicy: {"when_deleted": "Retain", "when_scaled": "Retain"},
    CronJob: {
        "spec.concurrency_policy": "Allow",
        "spec.suspend": False,
        "spec.successful_jobs_history_limit": 3,
        "spec.failed_jobs_history_limit": 1,
    },
    # The rest
    PriorityClass: {"preemption_policy": "PreemptLowerPriority"},
    Secret: {"type": "Opaque"},
    Service: {"spec.type": "ClusterIP", "spec.session_affinity": "None"},
    ServicePort: {"protocol": "TCP"},
    EndpointPort: {"protocol": "TCP"},
    RoleRef: {"api_group": RBAC_GROUP},
}


Apply = Callable[[Any], Any]


def defaulter_of(of: type[Object] | None) -> Apply:
    """Returns an object with its defaults; the same object if it has them all."""
    return (_compile(of) if of is not None else None) or _unchanged


def _unchanged(obj: Any) -> Any:
    return obj


@cache
def _compile(of: type[Object]) -> Apply | None:
    """None: nothing to set in this type, nor below it."""
    steps = list(_steps(of))
    if not steps:
        return None

    def apply(obj: Any) -> Any:
        for step in steps:
            obj = step(obj)
        return obj

    return apply


def _steps(of: type[Object]) -> Iterator[Apply]:
    if of in VALUES:
        yield _setter(VALUES[of])
    if of in FUNCTIONS:
        yield FUNCTIONS[of]
    fields = []
    for field in schema(of).values():
        inner = field.item if field.shape == "list" else field
        if inner is not None and inner.type not in (None, of) and (below := _compile(inner.type)):
            fields.append((field.attribute, field.shape == "list", below))
    if fields:
        yield lambda obj: _visit(obj, fields)


def _setter(values: Mapping[str, Any]) -> Apply:
    """Sets these values (`spec.replicas`) where the writer gave none."""
    own = {path: value for path, value in values.items() if "." not in path}
    below: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        field, dot, rest = path.partition(".")
        if dot:
            below.setdefault(field, {})[rest] = value
    setters = [(field, False, _setter(rest)) for field, rest in below.items()]

    def apply(obj: Any) -> Any:
        return _visit(set_defaults(obj, **own) if own else obj, setters)

    return apply


def _visit(obj: Any, fields: list[tuple[str, bool, Apply]]) -> Any:
    changes = {}
    for name, is_list, apply in fields:
        value = getattr(obj, name)
        if not value:
            continue
        made = map_items(value, apply) if is_list else apply(value)
        if made is not value:
            changes[name] = made
    return structs.replace(obj, **changes) if changes else obj


# Defaults that depend on other fields


def _pod(pod: Pod) -> Pod:
    spec = pod.spec
    edit = _host_ports if spec.host_network else _requests_from_limits
    return replace_fields(
        pod,
        spec=replace_fields(
            spec,
            containers=map_items(spec.containers, edit),
            init_containers=map_items(spec.init_containers, edit),
        ),
    )


def _host_ports(container: Container) -> Container:
    ports = map_items(container.ports, lambda port: set_defaults(port, host_port=port.container_port))
    return _requests_from_limits(replace_fields(container, ports=ports))


def _requests_from_limits(container: Container) -> Container:
    """A limit without a request requests all of it. Only in pods: a template stays as it was written."""
    limits, requests = container.resources.limits, container.resources.requests
    if all(name in requests for name in limits):
        return container
    merged: Mapping[str, str] = {**limits, **requests}
    return structs.replace(container, resources=structs.replace(container.resources, requests=merged))


def _pod_spec(spec: PodSpec) -> PodSpec:
    """Two names of one field: readers of either find it."""
    account = spec.service_account_name or spec.service_account
    return set_defaults(spec, service_account_name=account, service_account=account) if account else spec


def _pull_policy(container: Any) -> Any:
    return set_defaults(container, image_pull_policy=pull_policy(container.image))


def _image_volume(source: ImageVolumeSource) -> ImageVolumeSource:
    return set_defaults(source, pull_policy=pull_policy(source.reference))


def pull_policy(image: str) -> str:
    """An image whose tag may move is pulled each time."""
    name, digest, _ = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    latest = tag == "latest" or (not tag and not digest and bool(image))
    return "Always" if latest else "IfNotPresent"


_VOLUME_SOURCES = tuple(f.name for f in structs.fields(Volume) if f.name != "name")


def _volume(volume: Volume) -> Volume:
    if all(getattr(volume, source) is None for source in _VOLUME_SOURCES):
        return structs.replace(volume, empty_dir=EmptyDirVolumeSource())
    return volume


def _deployment(obj: Deployment) -> Deployment:
    strategy = obj.spec.strategy
    if strategy.type != "RollingUpdate":
        return obj
    rolling = strategy.rolling_update or RollingUpdateDeployment()
    rolling = set_defaults(rolling, max_unavailable="25%", max_surge="25%")
    return replace_fields(
        obj, spec=replace_fields(obj.spec, strategy=replace_fields(strategy, rolling_update=rolling))
    )


def _daemon_set(obj: DaemonSet) -> DaemonSet:
    update = obj.spec.update_strategy
    if update.type != "RollingUpdate":
        return obj
    rolling = set_defaults(update.rolling_update or RollingUpdateDaemonSet(), max_unavailable=1, max_surge=0)
    return replace_fields(
        obj, spec=replace_fields(obj.spec, update_strategy=replace_fields(update, rolling_update=rolling))
    )


def _stateful_set(obj: StatefulSet) -> StatefulSet:
    update = obj.spec.update_strategy
    if not update.type:
        rolling = update.rolling_update or RollingUpdateStatefulSetStrategy()
        update = replace_fields(update, type="RollingUpdate", rolling_update=rolling)
    if update.type == "RollingUpdate" and update.rolling_update is not None:
        update = replace_fields(update, rolling_update=set_defaults(update.rolling_update, partition=0))
    return replace_fields(obj, spec=replace_fields(obj.spec, update_strategy=update))


def _replication_controller(obj: ReplicationController) -> ReplicationController:
    """Selector and labels are those of the template."""
    if obj.spec.template is None:
        return obj
    labels = obj.spec.template.metadata.labels
    spec = replace_fields(obj.spec, selector=obj.spec.selector or labels)
    return replace_fields(obj, spec=spec, metadata=set_defaults(obj.metadata, labels=labels))


def _job(obj: Job) -> Job:
    """Not of a JobSpec: the job in a CronJob gets its defaults when it is created."""
    spec = obj.spec
    if spec.completions is None and spec.parallelism is None:
        spec = structs.replace(spec, completions=1)
    spec = set_defaults(
        spec,
        parallelism=1,
        backoff_limit=MAX_INT32 if spec.backoff_limit_per_index is not None else 6,
        completion_mode="NonIndexed",
        suspend=False,
        pod_replacement_policy="Failed" if spec.pod_failure_policy is not None else "TerminatingOrFailed",
        manual_selector=False,
    )
    if spec.pod_failure_policy is not None:
        spec = replace_fields(spec, pod_failure_policy=_visit(spec.pod_failure_policy, _FAILURE_RULES))
    return copy_template_labels(replace_fields(obj, spec=spec))


def _true(pattern: PodFailurePolicyOnPodConditionsPattern) -> PodFailurePolicyOnPodConditionsPattern:
    return set_defaults(pattern, status="True")


_FAILURE_RULES: list[tuple[str, bool, Apply]] = [
    ("rules", True, lambda rule: _visit(rule, [("on_pod_conditions", True, _true)]))
]


def copy_template_labels(job: Job) -> Job:
    """A job without labels has those of its pods."""
    labels = job.spec.template.metadata.labels
    if not labels or job.metadata.labels:
        return job
    return structs.replace(job, metadata=structs.replace(job.metadata, labels=labels))


def _secret(secret: Secret) -> Secret:
    if not secret.string_data:
        return secret
    data = {**secret.data, **{key: text.encode() for key, text in secret.string_data.items()}}
    return structs.replace(secret, data=data, string_data={})


def _service(service: Service) -> Service:
    spec = service.spec
    if spec.type != "ExternalName":
        spec = set_defaults(spec, internal_traffic_policy="Cluster")
    if spec.cluster_ip:
        spec = set_defaults(spec, cluster_ips=(spec.cluster_ip,))
    return replace_fields(service, spec=spec)


def _service_port(port: ServicePort) -> ServicePort:
    return replace_fields(port, target_port=port.target_port or port.port)


def _limit_range_item(item: LimitRangeItem) -> LimitRangeItem:
    """A container without limits gets the maximum as its limit, and requests as much."""
    if item.type != "Container":
        return item
    default = {**item.max, **item.default}
    request = {**item.min, **default, **item.default_request}
    changes = {"default": default, "default_request": request}
    return replace_fields(item, **{k: v for k, v in changes.items() if v != getattr(item, k)})


def _node(node: Node) -> Node:
    if node.status.allocatable or not node.status.capacity:
        return node
    return replace_fields(node, status=replace_fields(node.status, allocatable=node.status.capacity))


def _subject(subject: Subject) -> Subject:
    return set_defaults(subject, api_group=RBAC_GROUP) if subject.kind in ("User", "Group") else subject


FUNCTIONS: Mapping[type[Object], Apply] = {
    Pod: _pod,
    PodSpec: _pod_spec,
    Container: _pull_policy,
    EphemeralContainer: _pull_policy,
    ImageVolumeSource: _image_volume,
    Volume: _volume,
    Deployment: _deployment,
    DaemonSet: _daemon_set,
    StatefulSet: _stateful_set,
    ReplicationController: _replication_controller,
    Job: _job,
    Secret: _secret,
    Service: _service,
    ServicePort: _service_port,
    LimitRangeItem: _limit_range_item,
    Node: _node,
    Subject: _subject,
}
