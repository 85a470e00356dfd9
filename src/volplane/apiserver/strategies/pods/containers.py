"""Containers: names, images, ports, environment, mounts, probes, resources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import structs

from volplane.api import core, quantity
from volplane.api.errors import (
    Causes,
    duplicate,
    forbidden,
    invalid,
    not_found,
    not_supported,
    required_value,
)
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.pods import probes

PROTOCOLS = ("SCTP", "TCP", "UDP")
MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
PROPAGATIONS = ("Bidirectional", "HostToContainer", "None")

_VARIABLE = re.compile(r"[ -<>-~]+")  # printable ASCII, no equals sign
_VARIABLE_WORDS = (
    "a valid environment variable name must consist only of printable ASCII characters other than '='"
)
_STANDARD = ("cpu", "ephemeral-storage", "memory")

AnyContainer = core.Container | core.EphemeralContainer


def containers(path: str, given: tuple[core.Container, ...], volumes: Mapping[str, core.Volume]) -> Causes:
    if not given:
        yield required_value(path)
        return
    seen: set[str] = set()
    for at, container in enumerate(given):
        here = f"{path}[{at}]"
        yield from common(here, container, volumes)
        yield from checks.not_duplicate(f"{here}.name", container.name, seen)
        yield from probes.validate_running_container(here, container)
    yield from _host_ports(path, given)


def init_containers(
    path: str,
    given: tuple[core.Container, ...],
    regular: tuple[core.Container, ...],
    volumes: Mapping[str, core.Volume],
) -> Causes:
    seen = {c.name for c in regular}
    for at, container in enumerate(given):
        here = f"{path}[{at}]"
        yield from common(here, container, volumes)
        yield from checks.not_duplicate(f"{here}.name", container.name, seen)
        yield from _host_ports(path, (container,))
        if container.restart_policy not in (None, "Always"):
            yield not_supported(f"{here}.restartPolicy", container.restart_policy, ("Always",))
        judge = (
            probes.validate_running_container
            if container.restart_policy == "Always"
            else probes.validate_init_container
        )
        yield from judge(here, container)


def common(path: str, container: AnyContainer, volumes: Mapping[str, core.Volume]) -> Causes:
    """Validate what all containers have in common."""
    if container.name:
        yield from checks.label(f"{path}.name", container.name)
    else:
        yield required_value(f"{path}.name")
    yield from checks.present(f"{path}.image", container.image)
    yield from checks.one_of(
        f"{path}.terminationMessagePolicy", container.termination_message_policy, MESSAGE_POLICIES
    )
    yield from _ports(f"{path}.ports", container)
    yield from _environment(f"{path}.env", container.env)
    yield from _environment_sources(f"{path}.envFrom", container.env_from)
    yield from _mounts(f"{path}.volumeMounts", container, volumes)
    yield from _devices(f"{path}.volumeDevices", container, volumes)
    yield from checks.one_of(f"{path}.imagePullPolicy", container.image_pull_policy, checks.PULL_POLICIES)
    yield from resources(f"{path}.resources", container.resources)


# Ports


def _ports(path: str, container: AnyContainer) -> Causes:
    seen: set[str] = set()
    for at, port in enumerate(container.ports):
        here = f"{path}[{at}]"
        if port.name:
            yield from checks.port_name(f"{here}.name", port.name)
            yield from checks.not_duplicate(f"{here}.name", port.name, seen)
        if port.container_port == 0:
            yield required_value(f"{here}.containerPort")
        else:
            yield from checks.port(f"{here}.containerPort", port.container_port)
        if port.host_port:
            yield from checks.port(f"{here}.hostPort", port.host_port)
        yield from checks.one_of(f"{here}.protocol", port.protocol, PROTOCOLS)


def _host_ports(path: str, given: Iterable[core.Container]) -> Causes:
    taken: set[tuple[str, str, int]] = set()
    for at, container in enumerate(given):
        for index, port in enumerate(container.ports):
            place = (port.protocol, port.host_ip, port.host_port)
            if port.host_port and place in taken:
                shown = f"{port.protocol}/{port.host_ip}/{port.host_port}"
                yield duplicate(f"{path}[{at}].ports[{index}].hostPort", shown)
            taken.add(place)


# Environment

_VALUE_SOURCES = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"


def _environment(path: str, given: tuple[core.EnvVar, ...]) -> Causes:
    for at, variable in enumerate(given):
        here = f"{path}[{at}]"
        if not variable.name:
            yield required_value(f"{here}.name")
        elif not _VARIABLE.fullmatch(variable.name):
            yield invalid(f"{here}.name", variable.name, _VARIABLE_WORDS)
        if variable.value_from is not None:
            yield from _value_from(f"{here}.valueFrom", variable.value, variable.value_from)


def _value_from(path: str, value: str, source: core.EnvVarSource) -> Causes:
    given = [f.name for f in structs.fields(source) if getattr(source, f.name) is not None]
    yield from _value_source(path, source)
    if not given:
        yield invalid(path, "", f"must specify one of: {_VALUE_SOURCES}")
    elif value:
        yield invalid(path, "", "may not be specified when `value` is not empty")
    elif len(given) > 1:
        yield invalid(path, "", "may not have more than one field specified at a time")


def _value_source(path: str, source: core.EnvVarSource) -> Causes:
    if source.field_ref is not None and not source.field_ref.field_path:
        yield required_value(f"{path}.fieldRef.fieldPath")
    if source.resource_field_ref is not None and not source.resource_field_ref.resource:
        yield required_value(f"{path}.resourceFieldRef.resource")
    for name, ref in (
        ("configMapKeyRef", source.config_map_key_ref),
        ("secretKeyRef", source.secret_key_ref),
    ):
        if ref is not None:
            yield from checks.present(f"{path}.{name}.name", ref.name)
            if ref.key:
                yield from checks.config_key(f"{path}.{name}.key", ref.key)
            else:
                yield required_value(f"{path}.{name}.key")


def _environment_sources(path: str, given: tuple[core.EnvFromSource, ...]) -> Causes:
    for at, source in enumerate(given):
        here = f"{path}[{at}]"
        if source.prefix and not _VARIABLE.fullmatch(source.prefix):
            yield invalid(f"{here}.prefix", source.prefix, _VARIABLE_WORDS)
        refs = (("configMapRef", source.config_map_ref), ("secretRef", source.secret_ref))
        chosen = [(name, ref) for name, ref in refs if ref is not None]
        yield from [required_value(f"{here}.{name}.name") for name, ref in chosen if not ref.name]
        if not chosen:
            yield invalid(here, "", "must specify one of: `configMapRef` or `secretRef`")
        elif len(chosen) > 1:
            yield invalid(here, "", "may not have more than one field specified at a time")


# Mounts


def _mounts(path: str, container: AnyContainer, volumes: Mapping[str, core.Volume]) -> Causes:
    places: set[str] = set()
    devices = {d.name: d.device_path for d in container.volume_devices}
    for at, mount in enumerate(container.volume_mounts):
        here = f"{path}[{at}]"
        yield from checks.present(f"{here}.name", mount.name)
        if mount.name not in volumes:
            yield not_found(f"{here}.name", mount.name)
        yield from checks.present(f"{here}.mountPath", mount.mount_path)
        if mount.mount_path in places:
            yield invalid(f"{here}.mountPath", mount.mount_path, "must be unique")
        places.add(mount.mount_path)
        if mount.name in devices:
            yield invalid(f"{here}.name", mount.name, "must not already exist in volumeDevices")
        if mount.mount_path in devices.values():
            message = "must not already exist as a path in volumeDevices"
            yield invalid(f"{here}.mountPath", mount.mount_path, message)
        yield from _sub_path(path, here, mount)
        yield from _propagation(f"{path}.mountPropagation", mount.mount_propagation, container)


def _sub_path(path: str, here: str, mount: Any) -> Causes:
    if mount.sub_path:
        yield from checks.relative_path(f"{path}.subPath", mount.sub_path)
    if mount.sub_path_expr:
        if mount.sub_path:
            message = "subPathExpr and subPath are mutually exclusive"
            yield invalid(f"{here}.subPathExpr", mount.sub_path_expr, message)
        yield from checks.relative_path(f"{path}.subPathExpr", mount.sub_path_expr)


def _propagation(path: str, mode: str | None, container: AnyContainer) -> Causes:
    if mode is None:
        return
    if mode not in PROPAGATIONS:
        yield not_supported(path, mode, PROPAGATIONS)
        return
    context = container.security_context
    if mode == "Bidirectional" and not (context is not None and context.privileged):
        yield forbidden(path, "Bidirectional mount propagation is available only to privileged containers")
        return


def _devices(path: str, container: AnyContainer, volumes: Mapping[str, core.Volume]) -> Causes:
    seen_names: set[str] = set()
    seen_paths: set[str] = set()
    mounts = {m.name: m.mount_path for m in container.volume_mounts}
    for at, device in enumerate(container.volume_devices):
        here = f"{path}[{at}]"
        yield from _device_volume(f"{here}.name", device.name, volumes)
        if device.name in seen_names:
            yield invalid(f"{here}.name", device.name, "must be unique")
        if not device.device_path:
            yield required_value(f"{here}.devicePath")
        elif ".." in device.device_path.split("/"):
            yield invalid(f"{here}.devicePath", device.device_path, "can not contain backsteps ('..')")
        if device.device_path in seen_paths:
            yield invalid(f"{here}.devicePath", device.device_path, "must be unique")
        if device.name in mounts:
            yield invalid(f"{here}.name", device.name, "must not already exist in volumeMounts")
        if device.device_path in mounts.values():
            message = "must not already exist as a path in volumeMounts"
            yield invalid(f"{here}.devicePath", device.device_path, message)
        seen_names.add(device.name)
        seen_paths.add(device.device_path)


def _device_volume(path: str, name: str, volumes: Mapping[str, core.Volume]) -> Causes:
    yield from checks.present(path, name)
    volume = volumes.get(name)
    if volume is None:
        yield not_found(path, name)
        return
    if volume.persistent_volume_claim is None and volume.ephemeral is None:
        message = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
        yield invalid(path, name, message)


# Resources


def resources(path: str, needs: core.ResourceRequirements) -> Causes:
    for name, amount in needs.limits.items():
        yield from _resource(f"{path}.limits[{name}]", name, amount)
    for name, amount in needs.requests.items():
        yield from _resource(f"{path}.requests[{name}]", name, amount)
        limit = needs.limits.get(name)
        if limit is not None:
            yield from _within(f"{path}.requests", name, amount, limit)
        elif not _overcommits(name):
            yield required_value(f"{path}.limits", "Limit must be set for non overcommitable resources")


def _within(path: str, name: str, amount: str, limit: str) -> Causes:
    asked, most = quantity.parse(amount), quantity.parse(limit)
    if asked != most and not _overcommits(name):
        yield invalid(path, amount, f"must be equal to {name} limit of {limit}")
        return
    if asked > most:
        yield invalid(path, amount, f"must be less than or equal to {name} limit of {limit}")
        return


def _resource(path: str, name: str, amount: str) -> Causes:
    yield from checks.qualified_name(path, name)
    if "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
        yield invalid(path, name, "must be a standard resource for containers")
    yield from checks.amount_not_negative(path, amount)
    if not _overcommits(name):
        yield from checks.integer_amount(path, amount)


def _overcommits(name: str) -> bool:
    """May a limit exceed the request? Not for extended resources and huge pages."""
    native = "/" not in name or name.partition("/")[0].endswith("kubernetes.io")
    return native and not name.startswith("hugepages-")
