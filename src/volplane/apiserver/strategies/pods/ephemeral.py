"""Ephemeral containers, which are added to a running pod for debugging."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from volplane.api.core import EphemeralContainer, PodSpec, Volume
from volplane.api.errors import Causes, forbidden, not_found
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.pods.containers import common

_NOT_ALLOWED = "cannot be set for an Ephemeral Container"
_FORBIDDEN = (
    "ports", "resources", "resize_policy", "restart_policy", "restart_policy_rules", "liveness_probe",
    "readiness_probe", "startup_probe", "lifecycle",
)  # fmt: skip
_FIELDS = tuple(
    (field.name, field.encode_name)
    for field in structs.fields(EphemeralContainer)
    if field.name in _FORBIDDEN
)
_EMPTY = EphemeralContainer()


def ephemeral_containers(path: str, spec: PodSpec, volumes: Mapping[str, Volume]) -> Causes:
    if not spec.ephemeral_containers:
        return
    others = {c.name for c in (*spec.containers, *spec.init_containers)}
    seen = set(others)
    for at, container in enumerate(spec.ephemeral_containers):
        here = f"{path}[{at}]"
        yield from common(here, container, volumes)
        yield from checks.not_duplicate(f"{here}.name", container.name, seen)
        target = container.target_container_name
        if target and target not in others:
            yield not_found(f"{here}.targetContainerName", target)
        yield from _forbidden_fields(here, container)


def _forbidden_fields(path: str, container: EphemeralContainer) -> Causes:
    """No ports, resources, probes, restarts or lifecycle hooks, and no subPath mounts."""
    yield from [
        forbidden(f"{path}.{name}", _NOT_ALLOWED)
        for attribute, name in _FIELDS
        if getattr(container, attribute) != getattr(_EMPTY, attribute)
    ]
    for at, mount in enumerate(container.volume_mounts):
        for value, name in ((mount.sub_path, "subPath"), (mount.sub_path_expr, "subPathExpr")):
            if value:
                yield forbidden(f"{path}.volumeMounts[{at}].{name}", _NOT_ALLOWED)
