"""Containers: names, images, ports, environment, mounts, probes, resources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import structs

from volplane.api import quantity
from volplane.api.core import (
    Container,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    EphemeralContainer,
    ResourceRequirements,
    Volume,
)
from volplane.api.errors import Cause, duplicate, forbidden, invalid, not_found, not_supported, required_value
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.pods import probes

PULL_POLICIES = ("Always", "IfNotPresent", "Never")
PROTOCOLS = ("SCTP", "TCP", "UDP")
MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
PROPAGATIONS = ("Bidirectional", "HostToContainer", "None")

_VARIABLE = re.compile(r"[ -<>-~]+")  # printable ASCII, no equals sign
_VARIABLE_WORDS = (
    "a valid environment variable name must consist only of printable ASCII characters other than '='"
)
_STANDARD = ("cpu", "ephemeral-storage", "memory")

AnyContainer = Container | EphemeralContainer


def containers(path: str, given: tuple[Container, ...], volumes: Mapping[str, Volume]) -> list[Cause]:
    if not given:
        return [required_value(path)]
    wrong: list[Cause] = []
    seen: set[str] = set()
    for at, container in enumerate(given):
        here = f"{path}[{at}]"
        wrong += common(here, container, volumes)
        if container.name in seen:
            wrong.append(duplicate(f"{here}.name", container.name))
        seen.add(container.name)
        wrong += probes.validate_running_container(here, container)
    return wrong + _host_ports(path, given)


def init_containers(
    path: str, given: tuple[Container, ...], regular: tuple[Container, ...], volumes: Mapping[str, Volume]
) -> list[Cause]:
    wrong: list[Cause] = []
    seen = {c.name for c in regular}
    for at, container in enumerate(given):
        here = f"{path}[{at}]"
        wrong += common(here, container, volumes)
        if container.name in seen:
            wrong.append(duplicate(f"{here}.name", container.name))
        seen.add(container.name)
        wrong += _host_ports(path, (container,))
        if container.restart_policy not in (None, "Always"):
            wrong.append(not_supported(f"{here}.restartPolicy", container.restart_policy, ("Always",)))
        judge = (
            probes.validate_running_container
            if container.restart_policy == "Always"
            else probes.validate_init_container
        )
        wrong += judge(here, container)
    return wrong


def common(path: str, container: AnyContainer, volumes: Mapping[str, Volume]) -> list[Cause]:
    """What holds for every container."""
    wrong = (
        checks.label(f"{path}.name", container.name) if container.name else [required_value(f"{path}.name")]
    )
    if not container.image:
        wrong.append(required_value(f"{path}.image"))
    wrong += checks.one_of(
        f"{path}.terminationMessagePolicy", container.termination_message_policy, MESSAGE_POLICIES
    )
    wrong += _ports(f"{path}.ports", container)
    wrong += _environment(f"{path}.env", container.env)
    wrong += _environment_sources(f"{path}.envFrom", container.env_from)
    wrong += _mounts(f"{path}.volumeMounts", container, volumes)
    wrong += _devices(f"{path}.volumeDevices", container, volumes)
    wrong += checks.one_of(f"{path}.imagePullPolicy", container.image_pull_policy, PULL_POLICIES)
    return wrong + resources(f"{path}.resources", container.resources)


# Ports


def _ports(path: str, container: AnyContainer) -> list[Cause]:
    wrong: list[Cause] = []
    seen: set[str] = set()
    for at, port in enumerate(container.ports):
        here = f"{path}[{at}]"
        if port.name:
            wrong += checks.port_name(f"{here}.name", port.name)
            if port.name in seen:
                wrong.append(duplicate(f"{here}.name", port.name))
            seen.add(port.name)
        if port.container_port == 0:
            wrong.append(required_value(f"{here}.containerPort"))
        else:
            wrong += checks.port(f"{here}.containerPort", port.container_port)
        if port.host_port:
            wrong += checks.port(f"{here}.hostPort", port.host_port)
        wrong += checks.one_of(f"{here}.protocol", port.protocol, PROTOCOLS)
    return wrong


def _host_ports(path: str, given: Iterable[Container]) -> list[Cause]:
    wrong: list[Cause] = []
    taken: set[tuple[str, str, int]] = set()
    for at, container in enumerate(given):
        for index, port in enumerate(container.ports):
            place = (port.protocol, port.host_ip, port.host_port)
            if port.host_port and place in taken:
                shown = f"{port.protocol}/{port.host_ip}/{port.host_port}"
                wrong.append(duplicate(f"{path}[{at}].ports[{index}].hostPort", shown))
            taken.add(place)
    return wrong


# Environment

_VALUE_SOURCES = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"


def _environment(path: str, given: tuple[EnvVar, ...]) -> list[Cause]:
    wrong: list[Cause] = []
    for at, variable in enumerate(given):
        here = f"{path}[{at}]"
        if not variable.name:
            wrong.append(required_value(f"{here}.name"))
        elif not _VARIABLE.fullmatch(variable.name):
            wrong.append(invalid(f"{here}.name", variable.name, _VARIABLE_WORDS))
        if variable.value_from is not None:
            wrong += _value_from(f"{here}.valueFrom", variable.value, variable.value_from)
    return wrong


def _value_from(path: str, value: str, source: EnvVarSource) -> list[Cause]:
    given = [f.name for f in structs.fields(source) if getattr(source, f.name) is not None]
    wrong = _value_source(path, source)
    if not given:
        wrong.append(invalid(path, "", f"must specify one of: {_VALUE_SOURCES}"))
    elif value:
        wrong.append(invalid(path, "", "may not be specified when `value` is not empty"))
    elif len(given) > 1:
        wrong.append(invalid(path, "", "may not have more than one field specified at a time"))
    return wrong


def _value_source(path: str, source: EnvVarSource) -> list[Cause]:
    wrong: list[Cause] = []
    if source.field_ref is not None and not source.field_ref.field_path:
        wrong.append(required_value(f"{path}.fieldRef.fieldPath"))
    if source.resource_field_ref is not None and not source.resource_field_ref.resource:
        wrong.append(required_value(f"{path}.resourceFieldRef.resource"))
    for name, ref in (
        ("configMapKeyRef", source.config_map_key_ref),
        ("secretKeyRef", source.secret_key_ref),
    ):
        if ref is not None:
            wrong += [] if ref.name else [required_value(f"{path}.{name}.name")]
            wrong += (
                checks.config_key(f"{path}.{name}.key", ref.key)
                if ref.key
                else [required_value(f"{path}.{name}.key")]
            )
    return wrong


def _environment_sources(path: str, given: tuple[EnvFromSource, ...]) -> list[Cause]:
    wrong: list[Cause] = []
    for at, source in enumerate(given):
        here = f"{path}[{at}]"
        if source.prefix and not _VARIABLE.fullmatch(source.prefix):
            wrong.append(invalid(f"{here}.prefix", source.prefix, _VARIABLE_WORDS))
        refs = (("configMapRef", source.config_map_ref), ("secretRef", source.secret_ref))
        chosen = [(name, ref) for name, ref in refs if ref is not None]
        wrong += [required_value(f"{here}.{name}.name") for name, ref in chosen if not ref.name]
        if not chosen:
            wrong.append(invalid(here, "", "must specify one of: `configMapRef` or `secretRef`"))
        elif len(chosen) > 1:
            wrong.append(invalid(here, "", "may not have more than one field specified at a time"))
    return wrong


# Mounts


def _mounts(path: str, container: AnyContainer, volumes: Mapping[str, Volume]) -> list[Cause]:
    wrong: list[Cause] = []
    places: set[str] = set()
    devices = {d.name: d.device_path for d in container.volume_devices}
    for at, mount in enumerate(container.volume_mounts):
        here = f"{path}[{at}]"
        if not mount.name:
            wrong.append(required_value(f"{here}.name"))
        if mount.name not in volumes:
            wrong.append(not_found(f"{here}.name", mount.name))
        if not mount.mount_path:
            wrong.append(required_value(f"{here}.mountPath"))
        if mount.mount_path in places:
            wrong.append(invalid(f"{here}.mountPath", mount.mount_path, "must be unique"))
        places.add(mount.mount_path)
        if mount.name in devices:
            wrong.append(invalid(f"{here}.name", mount.name, "must not already exist in volumeDevices"))
        if mount.mount_path in devices.values():
            told = "must not already exist as a path in volumeDevices"
            wrong.append(invalid(f"{here}.mountPath", mount.mount_path, told))
        wrong += _sub_path(path, here, mount)
        wrong += _propagation(f"{path}.mountPropagation", mount.mount_propagation, container)
    return wrong


def _sub_path(path: str, here: str, mount: Any) -> list[Cause]:
    wrong = checks.relative_path(f"{path}.subPath", mount.sub_path) if mount.sub_path else []
    if mount.sub_path_expr:
        if mount.sub_path:
            told = "subPathExpr and subPath are mutually exclusive"
            wrong.append(invalid(f"{here}.subPathExpr", mount.sub_path_expr, told))
        wrong += checks.relative_path(f"{path}.subPathExpr", mount.sub_path_expr)
    return wrong


def _propagation(path: str, mode: str | None, container: AnyContainer) -> list[Cause]:
    if mode is None:
        return []
    if mode not in PROPAGATIONS:
        return [not_supported(path, mode, PROPAGATIONS)]
    context = container.security_context
    if mode == "Bidirectional" and not (context is not None and context.privileged):
        told = "Bidirectional mount propagation is available only to privileged containers"
        return [forbidden(path, told)]
    return []


def _devices(path: str, container: AnyContainer, volumes: Mapping[str, Volume]) -> list[Cause]:
    wrong: list[Cause] = []
    seen_names: set[str] = set()
    seen_paths: set[str] = set()
    mounts = {m.name: m.mount_path for m in container.volume_mounts}
    for at, device in enumerate(container.volume_devices):
        here = f"{path}[{at}]"
        wrong += _device_volume(f"{here}.name", device.name, volumes)
        if device.name in seen_names:
            wrong.append(invalid(f"{here}.name", device.name, "must be unique"))
        if not device.device_path:
            wrong.append(required_value(f"{here}.devicePath"))
        elif ".." in device.device_path.split("/"):
            wrong.append(
                invalid(f"{here}.devicePath", device.device_path, "can not contain backsteps ('..')")
            )
        if device.device_path in seen_paths:
            wrong.append(invalid(f"{here}.devicePath", device.device_path, "must be unique"))
        if device.name in mounts:
            wrong.append(invalid(f"{here}.name", device.name, "must not already exist in volumeMounts"))
        if device.device_path in mounts.values():
            told = "must not already exist as a path in volumeMounts"
            wrong.append(invalid(f"{here}.devicePath", device.device_path, told))
        seen_names.add(device.name)
        seen_paths.add(device.device_path)
    return wrong


def _device_volume(path: str, name: str, volumes: Mapping[str, Volume]) -> list[Cause]:
    wrong = [] if name else [required_value(path)]
    volume = volumes.get(name)
    if volume is None:
        return [*wrong, not_found(path, name)]
    if volume.persistent_volume_claim is None and volume.ephemeral is None:
        told = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
        wrong.append(invalid(path, name, told))
    return wrong


# Resources


def resources(path: str, needs: ResourceRequirements) -> list[Cause]:
    wrong: list[Cause] = []
    for name, amount in needs.limits.items():
        wrong += _resource(f"{path}.limits[{name}]", name, amount)
    for name, amount in needs.requests.items():
        wrong += _resource(f"{path}.requests[{name}]", name, amount)
        limit = needs.limits.get(name)
        if limit is not None:
            wrong += _within(f"{path}.requests", name, amount, limit)
        elif not _overcommits(name):
            told = "Limit must be set for non overcommitable resources"
            wrong.append(required_value(f"{path}.limits", told))
    return wrong


def _within(path: str, name: str, amount: str, limit: str) -> list[Cause]:
    asked, most = quantity.parse(amount), quantity.parse(limit)
    if asked != most and not _overcommits(name):
        return [invalid(path, amount, f"must be equal to {name} limit of {limit}")]
    if asked > most:
        return [invalid(path, amount, f"must be less than or equal to {name} limit of {limit}")]
    return []


def _resource(path: str, name: str, amount: str) -> list[Cause]:
    wrong = checks.qualified_name(path, name)
    if "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
        wrong.append(invalid(path, name, "must be a standard resource for containers"))
    wrong += checks.amount_not_negative(path, amount)
    return wrong + (checks.integer_amount(path, amount) if not _overcommits(name) else [])


def _overcommits(name: str) -> bool:
    """May more be asked for than there is? Not of devices and huge pages."""
    native = "/" not in name or name.partition("/")[0].endswith("kubernetes.io")
    return native and not name.startswith("hugepages-")
