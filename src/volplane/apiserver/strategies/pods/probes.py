"""Probes and lifecycle hooks of containers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from volplane.api.core import Container, HTTPGetAction, Lifecycle, LifecycleHandler, Probe
from volplane.api.errors import Causes, forbidden, invalid, not_supported, required_value
from volplane.apiserver.strategies import checks

SCHEMES = ("HTTP", "HTTPS")
NOT_FOR_INIT = "may not be set for init containers without restartPolicy=Always"

_HEADER = re.compile(r"[-A-Za-z0-9]+")
_HEADER_WORDS = (
    "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used "
    "for validation is '[-A-Za-z0-9]+')"
)


def validate_running_container(path: str, container: Container) -> Causes:
    """Probes and hooks of a regular container or a sidecar."""
    yield from _lifecycle(f"{path}.lifecycle", container.lifecycle)
    for name, probe in _probes(container):
        yield from _probe(f"{path}.{name}", probe)
        if name != "readinessProbe" and probe.success_threshold != 1:
            yield invalid(f"{path}.{name}.successThreshold", probe.success_threshold, "must be 1")
        if name == "readinessProbe" and probe.termination_grace_period_seconds is not None:
            here = f"{path}.{name}.terminationGracePeriodSeconds"
            yield invalid(here, probe.termination_grace_period_seconds, "must not be set for readinessProbes")


def validate_init_container(path: str, container: Container) -> Causes:
    given = ["lifecycle"] if container.lifecycle is not None else []
    given += [name for name, _ in _probes(container)]
    yield from [forbidden(f"{path}.{name}", NOT_FOR_INIT) for name in given]


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


def _probe(path: str, probe: Probe) -> Causes:
    yield from _handler(path, probe, ("exec", "http_get", "tcp_socket", "grpc"))
    for name in _PROBE_NUMBERS:
        yield from checks.not_negative(f"{path}.{_camel(name)}", getattr(probe, name))
    grace = probe.termination_grace_period_seconds
    if grace is not None and grace <= 0:
        yield invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0")


def _lifecycle(path: str, lifecycle: Lifecycle | None) -> Causes:
    if lifecycle is None:
        return
    if lifecycle.post_start is not None:
        yield from _handler(f"{path}.postStart", lifecycle.post_start, _HOOKS)
    if lifecycle.pre_stop is not None:
        yield from _handler(f"{path}.preStop", lifecycle.pre_stop, _HOOKS)


_HOOKS = ("exec", "http_get", "tcp_socket", "sleep")


def _handler(path: str, handler: Probe | LifecycleHandler, choices: tuple[str, ...]) -> Causes:
    given = [name for name in choices if getattr(handler, name) is not None]
    if not given:
        yield required_value(path, "must specify a handler type")
        return
    yield from _action(f"{path}.{_camel(given[0])}", given[0], getattr(handler, given[0]))
    yield from checks.at_most_one(path, [_camel(name) for name in given], "handler type")


def _action(path: str, name: str, action: Any) -> Causes:
    match name:
        case "exec":
            yield from checks.present(f"{path}.command", action.command)
            return
        case "http_get":
            yield from _http_get(path, action)
            return
        case "tcp_socket":
            yield from checks.port_or_name(f"{path}.port", action.port)
            return
        case "grpc":
            yield from checks.port(f"{path}.port", action.port)
            return
    yield from checks.not_negative(f"{path}.seconds", action.seconds)


def _http_get(path: str, action: HTTPGetAction) -> Causes:
    yield from checks.present(f"{path}.path", action.path)
    yield from checks.port_or_name(f"{path}.port", action.port)
    if action.scheme not in SCHEMES:
        yield not_supported(f"{path}.scheme", action.scheme, SCHEMES)
    for header in action.http_headers:
        if not _HEADER.fullmatch(header.name):
            yield invalid(f"{path}.httpHeaders", header.name, _HEADER_WORDS)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
