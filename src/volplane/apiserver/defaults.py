"""Default values by type, wherever the type occurs: in a pod, in a pod template, in a claim template.

Kubernetes does the same: `SetDefaults_PodSpec` runs on every PodSpec. Fixed values are in `defaults.yaml`;
those that depend on other fields are set by functions here. A traversal compiled for each kind visits only
fields that have something to set in them or below them. An object gets its own defaults before its fields
get theirs. Applying defaults twice changes nothing, so an update skips the members that it left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import yaml
from msgspec import structs

from volplane.api import apps, batch, core, rbac
from volplane.api.object import Object, schema
from volplane.api.published_schema import message_name
from volplane.apiserver.struct_edit import map_items, replace_fields, set_defaults

FILE_MODE = 0o644
GRACE_SECONDS = 30
MAX_INT32 = (1 << 31) - 1
RBAC_GROUP = "rbac.authorization.k8s.io"

Apply = Callable[[Any], Any]


class Defaulter(Protocol):
    """Sets the defaults of an object; returns the same object if all are set."""

    def __call__(self, obj: Any, old: Any = None) -> Any:
        """`old`: the stored object of an update. Members that the update left alone are skipped: they were
        given their defaults when they were stored. Defaults that a later release added are not added to them.
        """


@cache
def _values() -> Mapping[str, Mapping[str, Any]]:
    text = Path(__file__).with_name("defaults.yaml").read_bytes()
    values: Mapping[str, Mapping[str, Any]] = yaml.load(text, Loader=yaml.CSafeLoader)
    return values


def defaulter_of(of: type[Object] | None) -> Defaulter:
    return (_compile(of) if of is not None else None) or _return_unchanged


def _return_unchanged(obj: Any, old: Any = None) -> Any:
    return obj


@cache
def _compile(of: type[Object]) -> Defaulter | None:
    """Return the function that sets the defaults of a type, or None if it has none in it or below it."""
    steps, fields = list(_steps(of)), _fields_with_defaults(of)
    visit = _visitor([], fields) if fields else _return_unchanged
    if not steps:
        return visit if fields else None

    def apply(obj: Any, old: Any = None) -> Any:
        for step in steps:
            obj = step(obj)
        return visit(obj, old)

    return apply


def _steps(of: type[Object]) -> Iterator[Apply]:
    """What sets the defaults of a type's own fields."""
    if values := _values().get(message_name(of)):
        yield _setter(of, values)
    if function := FUNCTIONS.get(of) or FUNCTIONS_BY_NAME.get(message_name(of)):
        yield function


def _fields_with_defaults(of: type[Object]) -> list[tuple[str, Apply]]:
    """The fields of a type that have defaults in them or below them, and what sets those."""
    fields: list[tuple[str, Apply]] = []
    for field in schema(of).values():
        inner = field.item if field.shape == "list" else field
        if inner is not None and inner.type not in (None, of) and (below := _compile(inner.type)):
            edit = partial(map_items, edit=below) if field.shape == "list" else below
            fields.append((field.attribute, edit))
    return fields


def _setter(of: type[Object], values: Mapping[str, Any]) -> Apply:
    """Return a function that sets these values where the writer gave none; mappings member by member."""
    fields, empty = schema(of), of()
    leaves, below = [], []
    for name, value in values.items():
        attribute, inner = fields[name].attribute, fields[name].type
        if isinstance(value, dict) and value and inner is not None:
            below.append((attribute, _setter(inner, value)))
        else:
            default = getattr(msgspec.convert({name: value}, of), attribute)
            leaves.append((attribute, getattr(empty, attribute), default))
    return _visitor(leaves, below)


def _visitor(leaves: list[tuple[str, Any, Any]], fields: list[tuple[str, Apply]]) -> Defaulter:
    """Return a function that sets empty leaves (attribute, empty value, default) and edits other fields."""

    def apply(obj: Any, old: Any = None) -> Any:
        changes = {name: value for name, empty, value in leaves if getattr(obj, name) == empty}
        for name, edit in fields:
            value = getattr(obj, name)
            if value and (old is None or value is not getattr(old, name)):
                edited = edit(value)
                if edited is not value:
                    changes[name] = edited
        return structs.replace(obj, **changes) if changes else obj

    return apply


# Defaults that depend on other fields


def _pod(pod: core.Pod) -> core.Pod:
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


def _host_ports(container: core.Container) -> core.Container:
    ports = map_items(container.ports, lambda port: set_defaults(port, host_port=port.container_port))
    return _requests_from_limits(replace_fields(container, ports=ports))


def _requests_from_limits(container: core.Container) -> core.Container:
    """A limit without a request is also the request. Only in pods: a template stays as it was written."""
    limits, requests = container.resources.limits, container.resources.requests
    if all(name in requests for name in limits):
        return container
    merged: Mapping[str, str] = {**limits, **requests}
    return structs.replace(container, resources=structs.replace(container.resources, requests=merged))


def _pod_spec(spec: core.PodSpec) -> core.PodSpec:
    """Set serviceAccountName and its deprecated alias serviceAccount to the same value."""
    account = spec.service_account_name or spec.service_account
    return set_defaults(spec, service_account_name=account, service_account=account) if account else spec


def _pull_policy(container: Any) -> Any:
    return set_defaults(container, image_pull_policy=pull_policy(container.image))


def _image_volume(source: core.ImageVolumeSource) -> core.ImageVolumeSource:
    return set_defaults(source, pull_policy=pull_policy(source.reference))


def pull_policy(image: str) -> str:
    """Always for the tag `latest`, given or implied; otherwise IfNotPresent."""
    name, digest, _ = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    latest = tag == "latest" or (not tag and not digest and bool(image))
    return "Always" if latest else "IfNotPresent"


_VOLUME_SOURCES = tuple(f.name for f in structs.fields(core.Volume) if f.name != "name")


def _volume(volume: core.Volume) -> core.Volume:
    if all(getattr(volume, source) is None for source in _VOLUME_SOURCES):
        return structs.replace(volume, empty_dir=core.EmptyDirVolumeSource())
    return volume


def _deployment(obj: apps.Deployment) -> apps.Deployment:
    strategy = obj.spec.strategy
    if strategy.type != "RollingUpdate":
        return obj
    rolling = strategy.rolling_update or apps.RollingUpdateDeployment()
    rolling = set_defaults(rolling, max_unavailable="25%", max_surge="25%")
    return replace_fields(
        obj, spec=replace_fields(obj.spec, strategy=replace_fields(strategy, rolling_update=rolling))
    )


def _daemon_set(obj: apps.DaemonSet) -> apps.DaemonSet:
    update = obj.spec.update_strategy
    if update.type != "RollingUpdate":
        return obj
    rolling = set_defaults(
        update.rolling_update or apps.RollingUpdateDaemonSet(), max_unavailable=1, max_surge=0
    )
    return replace_fields(
        obj, spec=replace_fields(obj.spec, update_strategy=replace_fields(update, rolling_update=rolling))
    )


def _stateful_set(obj: apps.StatefulSet) -> apps.StatefulSet:
    update = obj.spec.update_strategy
    if not update.type:
        rolling = update.rolling_update or apps.RollingUpdateStatefulSetStrategy()
        update = replace_fields(update, type="RollingUpdate", rolling_update=rolling)
    if update.type == "RollingUpdate" and update.rolling_update is not None:
        update = replace_fields(update, rolling_update=set_defaults(update.rolling_update, partition=0))
    return replace_fields(obj, spec=replace_fields(obj.spec, update_strategy=update))


def _replication_controller(obj: core.ReplicationController) -> core.ReplicationController:
    """An omitted selector and omitted labels are copied from the template's labels."""
    if obj.spec.template is None:
        return obj
    labels = obj.spec.template.metadata.labels
    spec = replace_fields(obj.spec, selector=obj.spec.selector or labels)
    return replace_fields(obj, spec=spec, metadata=set_defaults(obj.metadata, labels=labels))


def _job(obj: batch.Job) -> batch.Job:
    """Defaults of a Job, not of each JobSpec: a CronJob's template gets them when it becomes a Job."""
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
    return copy_template_labels(replace_fields(obj, spec=spec))


def copy_template_labels(job: batch.Job) -> batch.Job:
    """Copy the labels of the pod template to a job that has none."""
    labels = job.spec.template.metadata.labels
    if not labels or job.metadata.labels:
        return job
    return structs.replace(job, metadata=structs.replace(job.metadata, labels=labels))


def _secret(secret: core.Secret) -> core.Secret:
    if not secret.string_data:
        return secret
    data = {**secret.data, **{key: text.encode() for key, text in secret.string_data.items()}}
    return structs.replace(secret, data=data, string_data={})


def _service(service: core.Service) -> core.Service:
    spec = service.spec
    if spec.type != "ExternalName":
        spec = set_defaults(spec, internal_traffic_policy="Cluster")
    if spec.cluster_ip:
        spec = set_defaults(spec, cluster_ips=(spec.cluster_ip,))
    return replace_fields(service, spec=spec)


def _service_port(port: core.ServicePort) -> core.ServicePort:
    return replace_fields(port, target_port=port.target_port or port.port)


def _limit_range_item(item: core.LimitRangeItem) -> core.LimitRangeItem:
    """The default limit is the maximum; the default request is the default limit, or else the minimum."""
    if item.type != "Container":
        return item
    default = {**item.max, **item.default}
    request = {**item.min, **default, **item.default_request}
    changes = {"default": default, "default_request": request}
    return replace_fields(item, **{k: v for k, v in changes.items() if v != getattr(item, k)})


def _node(node: core.Node) -> core.Node:
    if node.status.allocatable or not node.status.capacity:
        return node
    return replace_fields(node, status=replace_fields(node.status, allocatable=node.status.capacity))


def _subject(subject: rbac.Subject) -> rbac.Subject:
    return set_defaults(subject, api_group=RBAC_GROUP) if subject.kind in ("User", "Group") else subject


def _network_policy(spec: Any) -> Any:
    types = ("Ingress", "Egress") if spec.egress else ("Ingress",)
    return set_defaults(spec, policy_types=types)


def _device_count(request: Any) -> Any:
    return set_defaults(request, count=1) if request.allocation_mode == "ExactCount" else request


CPU_UTILIZATION = 80  # percent, of an autoscaler that names no metric
METRICS_ANNOTATION = "autoscaling.alpha.kubernetes.io/metrics"  # of autoscaling/v1
_CPU_METRIC = {
    "type": "Resource",
    "resource": {
        "name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": CPU_UTILIZATION},
    },
}
_PERCENT_POLICY = {"type": "Percent", "value": 100, "periodSeconds": 15}
_SCALE_UP = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}, _PERCENT_POLICY],
}
_SCALE_DOWN = {"selectPolicy": "Max", "policies": [_PERCENT_POLICY]}


def _autoscaler_metrics(spec: Any) -> Any:
    return set_defaults(spec, metrics=msgspec.convert({"metrics": [_CPU_METRIC]}, type(spec)).metrics)


def _autoscaler_v1(autoscaler: Any) -> Any:
    if METRICS_ANNOTATION in autoscaler.metadata.annotations or autoscaler.spec is None:
        return autoscaler
    spec = set_defaults(autoscaler.spec, target_c_p_u_utilization_percentage=CPU_UTILIZATION)
    return replace_fields(autoscaler, spec=spec)


def _scaling_behavior(behavior: Any) -> Any:
    """Each direction that is missing, and each field of it."""
    usual = msgspec.convert({"scaleUp": _SCALE_UP, "scaleDown": _SCALE_DOWN}, type(behavior))
    changes = {}
    for direction in ("scale_up", "scale_down"):
        given, default = getattr(behavior, direction), getattr(usual, direction)
        changes[direction] = default if given is None else set_defaults(given, **structs.asdict(default))
    return replace_fields(behavior, **changes)


# Of kinds without a Struct
FUNCTIONS_BY_NAME: Mapping[str, Apply] = {
    "autoscaling.HorizontalPodAutoscaler": _autoscaler_v1,
    "autoscaling/v2.HorizontalPodAutoscalerBehavior": _scaling_behavior,
    "autoscaling/v2.HorizontalPodAutoscalerSpec": _autoscaler_metrics,
    "networking.NetworkPolicySpec": _network_policy,
    "resource.ExactDeviceRequest": _device_count,
    "resource.DeviceSubRequest": _device_count,
}

FUNCTIONS: Mapping[type[Object], Apply] = {
    core.Pod: _pod,
    core.PodSpec: _pod_spec,
    core.Container: _pull_policy,
    core.EphemeralContainer: _pull_policy,
    core.ImageVolumeSource: _image_volume,
    core.Volume: _volume,
    apps.Deployment: _deployment,
    apps.DaemonSet: _daemon_set,
    apps.StatefulSet: _stateful_set,
    core.ReplicationController: _replication_controller,
    batch.Job: _job,
    core.Secret: _secret,
    core.Service: _service,
    core.ServicePort: _service_port,
    core.LimitRangeItem: _limit_range_item,
    core.Node: _node,
    rbac.Subject: _subject,
}
