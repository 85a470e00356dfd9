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
from volplane.apiserver.strategies.edit import changed, each, filled, maybe

FILE_MODE = 0o644
TOKEN_SECONDS = 3600
GRACE_SECONDS = 30

C = TypeVar("C", Container, EphemeralContainer)


def pod(obj: Pod) -> Pod:
    spec = pod_spec(obj.spec)
    spec = changed(
        spec,
        containers=each(spec.containers, _requests_from_limits),
        init_containers=each(spec.init_containers, _requests_from_limits),
    )
    spec = filled(spec, enable_service_links=True)
    if spec.host_network:
        spec = changed(
            spec,
            containers=each(spec.containers, _host_ports),
            init_containers=each(spec.init_containers, _host_ports),
        )
    return changed(obj, spec=spec)


def template(obj: PodTemplateSpec) -> PodTemplateSpec:
    return changed(obj, spec=pod_spec(obj.spec))


def pod_spec(spec: PodSpec) -> PodSpec:
    account = spec.service_account_name or spec.service_account
    spec = changed(
        spec,
        volumes=each(spec.volumes, _volume),
        containers=each(spec.containers, _container),
        init_containers=each(spec.init_containers, _container),
        ephemeral_containers=each(spec.ephemeral_containers, _container),
    )
    # Two names of one field: readers of either find it.
    spec = filled(spec, service_account_name=account, service_account=account) if account else spec
    return filled(
        spec,
        dns_policy="ClusterFirst",
        restart_policy="Always",
        security_context=PodSecurityContext(),
        termination_grace_period_seconds=GRACE_SECONDS,
        scheduler_name="default-scheduler",
    )


# Containers


def _container(container: C) -> C:
    container = changed(
        container,
        ports=each(container.ports, _port),
        env=each(container.env, _variable),
        liveness_probe=maybe(container.liveness_probe, _probe),
        readiness_probe=maybe(container.readiness_probe, _probe),
        startup_probe=maybe(container.startup_probe, _probe),
        lifecycle=maybe(container.lifecycle, _lifecycle),
    )
    return filled(
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
    return filled(port, protocol="TCP")


def _variable(variable: EnvVar) -> EnvVar:
    source = variable.value_from
    if source is None or (source.field_ref is None and source.resource_field_ref is None):
        return variable
    field = maybe(source.field_ref, _field_ref)
    resource = maybe(source.resource_field_ref, _resource_ref)
    return changed(variable, value_from=changed(source, field_ref=field, resource_field_ref=resource))


def _field_ref(selector: ObjectFieldSelector) -> ObjectFieldSelector:
    return filled(selector, api_version="v1")


def _resource_ref(selector: ResourceFieldSelector) -> ResourceFieldSelector:
    # Go always writes it, so that a template which has been through kubectl has it: both must be the same.
    return filled(selector, divisor="0")


def _probe(probe: Probe) -> Probe:
    probe = changed(probe, http_get=maybe(probe.http_get, _http_get), grpc=maybe(probe.grpc, _grpc))
    return filled(probe, timeout_seconds=1, period_seconds=10, success_threshold=1, failure_threshold=3)


def _grpc(action: GRPCAction) -> GRPCAction:
    return filled(action, service="")


def _http_get(action: HTTPGetAction) -> HTTPGetAction:
    return filled(action, path="/", scheme="HTTP")


def _lifecycle(lifecycle: Lifecycle) -> Lifecycle:
    return changed(
        lifecycle,
        post_start=maybe(lifecycle.post_start, _handler),
        pre_stop=maybe(lifecycle.pre_stop, _handler),
    )


def _handler(handler: LifecycleHandler) -> LifecycleHandler:
    return changed(handler, http_get=maybe(handler.http_get, _http_get))


def _requests_from_limits(container: Container) -> Container:
    """A limit without a request asks for all of it. Only in pods: a template keeps what was written."""
    limits, requests = container.resources.limits, container.resources.requests
    if all(name in requests for name in limits):
        return container
    merged: Mapping[str, str] = {**limits, **requests}
    return structs.replace(container, resources=structs.replace(container.resources, requests=merged))


def _host_ports(container: Container) -> Container:
    return changed(container, ports=each(container.ports, _host_port))


def _host_port(port: ContainerPort) -> ContainerPort:
    return filled(port, host_port=port.container_port)


# Volumes

_SOURCES = tuple(f.name for f in structs.fields(Volume) if f.name != "name")


def _volume(volume: Volume) -> Volume:
    if all(getattr(volume, source) is None for source in _SOURCES):
        return structs.replace(volume, empty_dir=EmptyDirVolumeSource())
    if volume.host_path is not None:
        return changed(volume, host_path=filled(volume.host_path, type=""))
    if volume.secret is not None:
        return changed(volume, secret=filled(volume.secret, default_mode=FILE_MODE))
    if volume.config_map is not None:
        return changed(volume, config_map=filled(volume.config_map, default_mode=FILE_MODE))
    if volume.downward_api is not None:
        files = each(volume.downward_api.items, _downward_file)
        source = filled(changed(volume.downward_api, items=files), default_mode=FILE_MODE)
        return changed(volume, downward_api=source)
    if volume.projected is not None:
        parts = each(volume.projected.sources, _projection)
        return changed(
            volume, projected=filled(changed(volume.projected, sources=parts), default_mode=FILE_MODE)
        )
    return _rarer_volume(volume)


def _rarer_volume(volume: Volume) -> Volume:
    if volume.image is not None:
        return changed(volume, image=filled(volume.image, pull_policy=pull_policy(volume.image.reference)))
    if volume.ephemeral is not None and volume.ephemeral.volume_claim_template is not None:
        claim = volume.ephemeral.volume_claim_template
        claim = changed(claim, spec=filled(claim.spec, volume_mode="Filesystem"))
        return changed(volume, ephemeral=changed(volume.ephemeral, volume_claim_template=claim))
    if volume.iscsi is not None:
        return changed(volume, iscsi=filled(volume.iscsi, iscsi_interface="default"))
    if volume.rbd is not None:
        rbd = filled(volume.rbd, pool="rbd", user="admin", keyring="/etc/ceph/keyring")
        return changed(volume, rbd=rbd)
    return volume


def _downward_file(file: DownwardAPIVolumeFile) -> DownwardAPIVolumeFile:
    field, resource = maybe(file.field_ref, _field_ref), maybe(file.resource_field_ref, _resource_ref)
    return changed(file, field_ref=field, resource_field_ref=resource)


def _projection(part: VolumeProjection) -> VolumeProjection:
    if part.service_account_token is not None:
        return changed(part, service_account_token=_token(part.service_account_token))
    if part.downward_api is not None:
        files = each(part.downward_api.items, _downward_file)
        return changed(part, downward_api=changed(part.downward_api, items=files))
    return part


def _token(token: ServiceAccountTokenProjection) -> ServiceAccountTokenProjection:
    return filled(token, expiration_seconds=TOKEN_SECONDS)
