"""Probes and lifecycle hooks: which container may have them, and what each must say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from volplane.api.core import Container, HTTPGetAction, Lifecycle, LifecycleHandler, Probe
from volplane.api.errors import Cause, forbidden, invalid, not_supported, required_value
from volplane.apiserver.strategies import checks

SCHEMES = ("HTTP", "HTTPS")
NOT_FOR_INIT = "may not be set for init containers without restartPolicy=Always"

_HEADER = re.compile(r"[-A-Za-z0-9]+")
_HEADER_WORDS = (
    "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used "
    "for validation is '[-A-Za-z0-9]+')"
)


def validate_running_container(path: str, container: Container) -> list[Cause]:
    """Probes and hooks of a container that keeps running."""
    causes = _lifecycle(f"{path}.lifecycle", container.lifecycle)
    for name, probe in _probes(container):
        causes += _probe(f"{path}.{name}", probe)
        if name != "readinessProbe" and probe.success_threshold != 1:
            causes.append(invalid(f"{path}.{name}.successThreshold", probe.success_threshold, "must be 1"))
        if name == "readinessProbe" and probe.termination_grace_period_seconds is not None:
            here = f"{path}.{name}.terminationGracePeriodSeconds"
            message = "must not be set for readinessProbes"
            causes.append(invalid(here, probe.termination_grace_period_seconds, message))
    return causes


def validate_init_container(path: str, container: Container) -> list[Cause]:
    given = ["lifecycle"] if container.lifecycle is not None else []
    given += [name for name, _ in _probes(container)]
    return [forbidden(f"{path}.{name}", NOT_FOR_INIT) for name in given]


def _probes(container: Container) -> Iterable[tuple[str, Probe]]:
    named = (
        ("livenessProbe", container.liveness_probe),
        ("readinessProbe", container.readiness_probe),
        ("startupProbe", container.startup_probe),
    )
    return [(name, probe) for name, probe in named if probe is not None]


_PROBE_NUMBERS = (
    "initial_delay_seconds",
    "timeout_seconds",
    "period_seconds",
    "success_threshold",
    "failure_threshold",
)


def _probe(path: str, probe: Probe) -> list[Cause]:
    causes = _handler(path, probe, ("exec", "http_get", "tcp_socket", "grpc"))
    for name in _PROBE_NUMBERS:
        causes += checks.not_negative(f"{path}.{_camel(name)}", getattr(probe, name))
    grace = probe.termination_grace_period_seconds
    if grace is not None and grace <= 0:
        causes.append(invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0"))
    return causes


def _lifecycle(path: str, lifecycle: Lifecycle | None) -> list[Cause]:
    if lifecycle is None:
        return []
    causes: list[Cause] = []
    if lifecycle.post_start is not None:
        causes += _handler(f"{path}.postStart", lifecycle.post_start, _HOOKS)
    if lifecycle.pre_stop is not None:
        causes += _handler(f"{path}.preStop", lifecycle.pre_stop, _HOOKS)
    return causes


_HOOKS = ("exec", "http_get", "tcp_socket", "sleep")


def _handler(path: str, handler: Probe | LifecycleHandler, choices: tuple[str, ...]) -> list[Cause]:
    given = [name for name in choices if getattr(handler, name) is not None]
    if not given:
        return [required_value(path, "must specify a handler type")]
    causes = _action(f"{path}.{_camel(given[0])}", given[0], getattr(handler, given[0]))
    return causes + checks.at_most_one(path, [_camel(name) for name in given], "handler type")


def _action(path: str, name: str, action: Any) -> list[Cause]:
    match name:
        case "exec":
            return checks.present(f"{path}.command", action.command)
        case "http_get":
            return _http_get(path, action)
        case "tcp_socket":
            return checks.port_or_name(f"{path}.port", action.port)
        case "grpc":
            return checks.port(f"{path}.port", action.port)
    return checks.not_negative(f"{path}.seconds", action.seconds)


def _http_get(path: str, action: HTTPGetAction) -> list[Cause]:
    causes = checks.present(f"{path}.path", action.path)
    causes += checks.port_or_name(f"{path}.port", action.port)
    if action.scheme not in SCHEMES:
        causes.append(not_supported(f"{path}.scheme", action.scheme, SCHEMES))
    for header in action.http_headers:
        if not _HEADER.fullmatch(header.name):
            causes.append(invalid(f"{path}.httpHeaders", header.name, _HEADER_WORDS))
    return causes


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
