"""What a pod's writer leaves out. The part for PodSpec also runs on the templates of workloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from msgspec import structs

from volplane.api.core import (
    Container,
    ContainerPort,
    DownwardAPIVolumeFile,
    EmptyDirVolumeSource,
    EnvVar,
    EphemeralContainer,
    GRPCAction,
    HTTPGetAction,
    Lifecycle,
    LifecycleHandler,
    ObjectFieldSelector,
    Pod,
    PodSecurityContext,
    PodSpec,
    PodTemplateSpec,
    Probe,
    ResourceFieldSelector,
    ServiceAccountTokenProjection,
    Volume,
    VolumeProjection,
)
from volplane.apiserver.strategies.struct_edit import map_items, map_optional, replace_fields, set_defaults

FILE_MODE = 0o644
TOKEN_SECONDS = 3600
GRACE_SECONDS = 30

C = TypeVar("C", Container, EphemeralContainer)


def pod(obj: Pod) -> Pod:
    spec = pod_spec(obj.spec)
    spec = replace_fields(
        spec,
        containers=map_items(spec.containers, _requests_from_limits),
        init_containers=map_items(spec.init_containers, _requests_from_limits),
    )
    spec = set_defaults(spec, enable_service_links=True)
    if spec.host_network:
        spec = replace_fields(
            spec,
            containers=map_items(spec.containers, _host_ports),
            init_containers=map_items(spec.init_containers, _host_ports),
        )
    return replace_fields(obj, spec=spec)


def template(obj: PodTemplateSpec) -> PodTemplateSpec:
    return replace_fields(obj, spec=pod_spec(obj.spec))


def pod_spec(spec: PodSpec) -> PodSpec:
    account = spec.service_account_name or spec.service_account
    spec = replace_fields(
        spec,
        volumes=map_items(spec.volumes, _volume),
        containers=map_items(spec.containers, _container),
        init_containers=map_items(spec.init_containers, _container),
        ephemeral_containers=map_items(spec.ephemeral_containers, _container),
    )
    # Two names of one field: readers of either find it.
    spec = set_defaults(spec, service_account_name=account, service_account=account) if account else spec
    return set_defaults(
        spec,
        dns_policy="ClusterFirst",
        restart_policy="Always",
        security_context=PodSecurityContext(),
        termination_grace_period_seconds=GRACE_SECONDS,
        scheduler_name="default-scheduler",
    )


# Containers


def _container(container: C) -> C:
    container = replace_fields(
        container,
        ports=map_items(container.ports, _port),
        env=map_items(container.env, _variable),
        liveness_probe=map_optional(container.liveness_probe, _probe),
        readiness_probe=map_optional(container.readiness_probe, _probe),
        startup_probe=map_optional(container.startup_probe, _probe),
        lifecycle=map_optional(container.lifecycle, _lifecycle),
    )
    return set_defaults(
        container,
        image_pull_policy=container.image_pull_policy or pull_policy(container.image),
        termination_message_path="/dev/termination-log",
        termination_message_policy="File",
    )


def pull_policy(image: str) -> str:
    """An image whose tag may move is pulled each time."""
    name, digest, _ = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    latest = tag == "latest" or (not tag and not digest and bool(image))
    return "Always" if latest else "IfNotPresent"


def _port(port: ContainerPort) -> ContainerPort:
    return set_defaults(port, protocol="TCP")


def _variable(variable: EnvVar) -> EnvVar:
    source = variable.value_from
    if source is None or (source.field_ref is None and source.resource_field_ref is None):
        return variable
    field = map_optional(source.field_ref, _field_ref)
    resource = map_optional(source.resource_field_ref, _resource_ref)
    return replace_fields(
        variable, value_from=replace_fields(source, field_ref=field, resource_field_ref=resource)
    )


def _field_ref(selector: ObjectFieldSelector) -> ObjectFieldSelector:
    return set_defaults(selector, api_version="v1")


def _resource_ref(selector: ResourceFieldSelector) -> ResourceFieldSelector:
    # Go always writes it, so that a template which has been through kubectl has it: both must be the same.
    return set_defaults(selector, divisor="0")


def _probe(probe: Probe) -> Probe:
    probe = replace_fields(
        probe, http_get=map_optional(probe.http_get, _http_get), grpc=map_optional(probe.grpc, _grpc)
    )
    return set_defaults(probe, timeout_seconds=1, period_seconds=10, success_threshold=1, failure_threshold=3)


def _grpc(action: GRPCAction) -> GRPCAction:
    return set_defaults(action, service="")


def _http_get(action: HTTPGetAction) -> HTTPGetAction:
    return set_defaults(action, path="/", scheme="HTTP")


def _lifecycle(lifecycle: Lifecycle) -> Lifecycle:
    return replace_fields(
        lifecycle,
        post_start=map_optional(lifecycle.post_start, _handler),
        pre_stop=map_optional(lifecycle.pre_stop, _handler),
    )


def _handler(handler: LifecycleHandler) -> LifecycleHandler:
    return replace_fields(handler, http_get=map_optional(handler.http_get, _http_get))


def _requests_from_limits(container: Container) -> Container:
    """A limit without a request asks for all of it. Only in pods: a template keeps what was written."""
    limits, requests = container.resources.limits, container.resources.requests
    if all(name in requests for name in limits):
        return container
    merged: Mapping[str, str] = {**limits, **requests}
    return structs.replace(container, resources=structs.replace(container.resources, requests=merged))


def _host_ports(container: Container) -> Container:
    return replace_fields(container, ports=map_items(container.ports, _host_port))


def _host_port(port: ContainerPort) -> ContainerPort:
    return set_defaults(port, host_port=port.container_port)


# Volumes

_SOURCES = tuple(f.name for f in structs.fields(Volume) if f.name != "name")


def _volume(volume: Volume) -> Volume:
    if all(getattr(volume, source) is None for source in _SOURCES):
        return structs.replace(volume, empty_dir=EmptyDirVolumeSource())
    if volume.host_path is not None:
        return replace_fields(volume, host_path=set_defaults(volume.host_path, type=""))
    if volume.secret is not None:
        return replace_fields(volume, secret=set_defaults(volume.secret, default_mode=FILE_MODE))
    if volume.config_map is not None:
        return replace_fields(volume, config_map=set_defaults(volume.config_map, default_mode=FILE_MODE))
    if volume.downward_api is not None:
        files = map_items(volume.downward_api.items, _downward_file)
        source = set_defaults(replace_fields(volume.downward_api, items=files), default_mode=FILE_MODE)
        return replace_fields(volume, downward_api=source)
    if volume.projected is not None:
        parts = map_items(volume.projected.sources, _projection)
        return replace_fields(
            volume,
            projected=set_defaults(replace_fields(volume.projected, sources=parts), default_mode=FILE_MODE),
        )
    return _rarer_volume(volume)


def _rarer_volume(volume: Volume) -> Volume:
    if volume.image is not None:
        return replace_fields(
            volume, image=set_defaults(volume.image, pull_policy=pull_policy(volume.image.reference))
        )
    if volume.ephemeral is not None and volume.ephemeral.volume_claim_template is not None:
        claim = volume.ephemeral.volume_claim_template
        claim = replace_fields(claim, spec=set_defaults(claim.spec, volume_mode="Filesystem"))
        return replace_fields(volume, ephemeral=replace_fields(volume.ephemeral, volume_claim_template=claim))
    if volume.iscsi is not None:
        return replace_fields(volume, iscsi=set_defaults(volume.iscsi, iscsi_interface="default"))
    if volume.rbd is not None:
        rbd = set_defaults(volume.rbd, pool="rbd", user="admin", keyring="/etc/ceph/keyring")
        return replace_fields(volume, rbd=rbd)
    return volume


def _downward_file(file: DownwardAPIVolumeFile) -> DownwardAPIVolumeFile:
    field, resource = (
        map_optional(file.field_ref, _field_ref),
        map_optional(file.resource_field_ref, _resource_ref),
    )
    return replace_fields(file, field_ref=field, resource_field_ref=resource)


def _projection(part: VolumeProjection) -> VolumeProjection:
    if part.service_account_token is not None:
        return replace_fields(part, service_account_token=_token(part.service_account_token))
    if part.downward_api is not None:
        files = map_items(part.downward_api.items, _downward_file)
        return replace_fields(part, downward_api=replace_fields(part.downward_api, items=files))
    return part


def _token(token: ServiceAccountTokenProjection) -> ServiceAccountTokenProjection:
    return set_defaults(token, expiration_seconds=TOKEN_SECONDS)
