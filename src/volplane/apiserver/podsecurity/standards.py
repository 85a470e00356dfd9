"""The checks of the Pod Security Standards for the levels baseline and restricted, by version.

A check takes the metadata and spec of a pod and returns upstream's message about a violation, or "".
Violations are sorted by the id of their check. A newer version of a check replaces the older one, and a check
of the restricted level may replace a weaker one of the baseline level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any

from msgspec import Struct, structs

from volplane.api.core import (
    AppArmorProfile,
    Container,
    EphemeralContainer,
    LifecycleHandler,
    PodSecurityContext,
    PodSpec,
    Probe,
    SeccompProfile,
    SecurityContext,
    SELinuxOptions,
    Volume,
)
from volplane.api.meta import ObjectMeta
from volplane.apiserver.auth.go_format import go_quote
from volplane.apiserver.podsecurity.policy import BASELINE, PRIVILEGED, RESTRICTED, LevelVersion

NEWEST = 35  # the minor version used for `latest` and for later versions

AnyContainer = Container | EphemeralContainer


class PodSecurityViolation(Struct, frozen=True):
    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})"


CheckPod = Callable[[ObjectMeta, PodSpec], str]  # what is wrong, or ""


class PodSecurityCheck(Struct, frozen=True):
    id: str
    level: str
    since: int  # the first minor version that has it
    run: CheckPod


def evaluate(policy: LevelVersion, meta: ObjectMeta, spec: PodSpec) -> list[PodSecurityViolation]:
    """Return the violations of the level, in upstream's order."""
    if policy.level == PRIVILEGED:
        return []
    minor = NEWEST if policy.minor is None else min(policy.minor, NEWEST)
    return [
        PodSecurityViolation(_reason(check, meta, spec), detail)
        for check in _checks(policy.level, minor)
        if (detail := check.run(meta, spec))
    ]


@cache
def _checks(level: str, minor: int) -> tuple[PodSecurityCheck, ...]:
    newest: dict[str, PodSecurityCheck] = {}
    for check in sorted(CHECKS, key=lambda check: check.since):
        if check.since <= minor and level in (check.level, RESTRICTED):
            newest[check.id] = check
    replaced = {REPLACES.get(id) for id in newest}
    chosen = [check for check in newest.values() if check.id not in replaced]
    return tuple(sorted(chosen, key=lambda check: (check.level, check.id)))


def _reason(check: PodSecurityCheck, meta: ObjectMeta, spec: PodSpec) -> str:
    if check.id == "appArmorProfile":
        return _plural(REASONS[check.id], _app_armor_values(meta, spec))
    return REASONS[check.id]


# --- helpers


def _containers(spec: PodSpec) -> Iterator[AnyContainer]:
    yield from spec.init_containers
    yield from spec.containers
    yield from spec.ephemeral_containers


_NO_CONTEXT, _NO_POD_CONTEXT = SecurityContext(), PodSecurityContext()


def _contexts(spec: PodSpec) -> Iterator[tuple[str, SecurityContext]]:
    """Yield name and security context of each container."""
    for container in _containers(spec):
        yield container.name, container.security_context or _NO_CONTEXT


def _pod_context(spec: PodSpec) -> PodSecurityContext:
    return spec.security_context or _NO_POD_CONTEXT


def _find_values(spec: PodSpec, attribute: str, is_bad: Callable[[Any], bool]) -> tuple[str, list[Any]]:
    """Describe who sets a bad value in the security context (pod, containers, or both); return the values."""
    own = getattr(_pod_context(spec), attribute, None)
    bad = [(name, value) for name, c in _contexts(spec) if is_bad(value := getattr(c, attribute))]
    setters = ["pod"] if is_bad(own) else []
    if bad:
        setters.append(_name_containers([name for name, _ in bad]))
    return " and ".join(setters), [*([own] if is_bad(own) else []), *(value for _, value in bad)]


def _join(words: Iterable[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def _plural(word: str, items: Sequence[object] | set[str], plural: str = "") -> str:
    return word if len(items) == 1 else plural or f"{word}s"


def _name_containers(containers: Sequence[str]) -> str:
    return f"{_plural('container', containers)} {_join(containers)}"


def _unless_windows(check: CheckPod) -> CheckPod:
    """Skip Windows pods: validation already forbids the field there."""
    return lambda meta, spec: "" if spec.os and spec.os.name == "windows" else check(meta, spec)


def _unless_user_namespace(check: CheckPod) -> CheckPod:
    """Skip pods with a user namespace: its root has no privileges on the node."""
    return lambda meta, spec: "" if spec.host_users is False else check(meta, spec)


# --- baseline


_APP_ARMOR_PREFIX = "container.apparmor.security.beta.kubernetes.io/"
_SECCOMP_POD = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP_PREFIX = "container.seccomp.security.alpha.kubernetes.io/"


def _is_bad_profile(profile: AppArmorProfile | SeccompProfile | None) -> bool:
    return profile is not None and profile.type not in ("RuntimeDefault", "Localhost")


def _app_armor(meta: ObjectMeta, spec: PodSpec) -> str:
    setters, _ = _find_values(spec, "app_armor_profile", _is_bad_profile)
    if annotations := _app_armor_annotations(meta):
        setters = " and ".join(filter(None, (setters, _plural("annotation", annotations))))
    values = _join(_app_armor_values(meta, spec))
    return f"{setters} must not set AppArmor profile type to {values}" if setters else ""


def _app_armor_values(meta: ObjectMeta, spec: PodSpec) -> list[str]:
    _, profiles = _find_values(spec, "app_armor_profile", _is_bad_profile)
    return [*sorted({profile.type for profile in profiles}), *_app_armor_annotations(meta)]


def _app_armor_annotations(meta: ObjectMeta) -> list[str]:
    return sorted(
        f"{key}={go_quote(value)}"
        for key, value in meta.annotations.items()
        if key.startswith(_APP_ARMOR_PREFIX)
        and value not in ("", "runtime/default")
        and not value.startswith("localhost/")
    )


_DEFAULT_CAPABILITIES = frozenset([
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE",
    "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
])  # fmt: skip


def _capabilities_baseline(meta: ObjectMeta, spec: PodSpec) -> str:
    return _added_capabilities(spec, _DEFAULT_CAPABILITIES)


def _added_capabilities(spec: PodSpec, allowed: Iterable[str]) -> str:
    added = {
        name: set(context.capabilities.add).difference(allowed)
        for name, context in _contexts(spec)
        if context.capabilities is not None
    }
    containers = [name for name, extra in added.items() if extra]
    names = _join(sorted(set().union(*added.values())))
    rule = f"must not include {names} in securityContext.capabilities.add"
    return f"{_name_containers(containers)} {rule}" if containers else ""


def _host_namespaces(meta: ObjectMeta, spec: PodSpec) -> str:
    given = (("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc))
    return ", ".join(f"{name}=true" for name, value in given if value)


def _host_paths(meta: ObjectMeta, spec: PodSpec) -> str:
    volumes = [volume.name for volume in spec.volumes if volume.host_path is not None]
    return f"{_plural('volume', volumes)} {_join(volumes)}" if volumes else ""


def _host_ports(meta: ObjectMeta, spec: PodSpec) -> str:
    containers = [c.name for c in _containers(spec) if any(port.host_port for port in c.ports)]
    ports = sorted({str(port.host_port) for c in _containers(spec) for port in c.ports if port.host_port})
    uses = f"{_plural('uses', containers, 'use')} {_plural('hostPort', ports)}"
    return f"{_name_containers(containers)} {uses} {', '.join(ports)}" if containers else ""


def _probe_hosts(meta: ObjectMeta, spec: PodSpec) -> str:
    hosts = {c.name: found for c in _containers(spec) if (found := set(_hosts(c)))}
    containers, every = sorted(hosts), sorted(set().union(*hosts.values()))
    uses = f"{_plural('uses', containers, 'use')} {_plural('probe or lifecycle host', every)}"
    return f"{_name_containers(containers)} {uses} {_join(every)}" if hosts else ""


def _hosts(container: AnyContainer) -> Iterator[str]:
    lifecycle = container.lifecycle
    handlers: tuple[Probe | LifecycleHandler | None, ...] = (
        container.liveness_probe,
        container.readiness_probe,
        container.startup_probe,
        lifecycle.post_start if lifecycle else None,
        lifecycle.pre_stop if lifecycle else None,
    )
    for handler in handlers:
        for action in (handler.http_get, handler.tcp_socket) if handler else ():
            if action is not None and action.host:
                yield action.host


def _privileged_containers(meta: ObjectMeta, spec: PodSpec) -> str:
    setters, _ = _find_values(spec, "privileged", bool)
    return f"{setters} must not set securityContext.privileged=true" if setters else ""


def _proc_mount(meta: ObjectMeta, spec: PodSpec) -> str:
    setters, values = _find_values(spec, "proc_mount", lambda value: value not in (None, "Default"))
    rule = f"must not set securityContext.procMount to {_join(sorted(set(values)))}"
    return f"{setters} {rule}" if setters else ""


_SELINUX_TYPES = frozenset({"", "container_t", "container_init_t", "container_kvm_t"})
_SELINUX_TYPES_31 = _SELINUX_TYPES | {"container_engine_t"}


def _selinux(types: frozenset[str], meta: ObjectMeta, spec: PodSpec) -> str:
    def is_bad(options: SELinuxOptions | None) -> bool:
        return options is not None and bool(options.type not in types or options.user or options.role)

    setters, given = _find_values(spec, "se_linux_options", is_bad)
    wrong = sorted({options.type for options in given} - types)
    words = [f"{_plural('type', wrong)} {_join(wrong)}"] if wrong else []
    words += ["user may not be set"] if any(options.user for options in given) else []
    words += ["role may not be set"] if any(options.role for options in given) else []
    return f"{setters} set forbidden securityContext.seLinuxOptions: {'; '.join(words)}" if setters else ""


def _seccomp_annotations(meta: ObjectMeta, spec: PodSpec) -> str:
    keys = [_SECCOMP_POD, *(f"{_SECCOMP_PREFIX}{container.name}" for container in _containers(spec))]
    wrong = {
        f"{key}={go_quote(value)}"
        for key in keys
        if (value := meta.annotations.get(key)) is not None
        and value not in ("runtime/default", "docker/default")
        and not value.startswith("localhost/")
    }
    return f"forbidden {_plural('annotation', wrong)} {', '.join(sorted(wrong))}" if wrong else ""


def _seccomp_baseline(meta: ObjectMeta, spec: PodSpec) -> str:
    setters, profiles = _find_values(spec, "seccomp_profile", _is_bad_profile)
    values = _join(sorted({profile.type for profile in profiles}))
    return f"{setters} must not set securityContext.seccompProfile.type to {values}" if setters else ""


_SYSCTLS = frozenset({
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range", "net.ipv4.ip_unprivileged_port_start",
})  # fmt: skip
_SYSCTLS_27 = _SYSCTLS | {"net.ipv4.ip_local_reserved_ports"}
_SYSCTLS_29 = _SYSCTLS_27 | {
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}  # fmt: skip
_SYSCTLS_32 = _SYSCTLS_29 | {"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"}


def _sysctls(allowed: frozenset[str], meta: ObjectMeta, spec: PodSpec) -> str:
    return ", ".join(sysctl.name for sysctl in _pod_context(spec).sysctls if sysctl.name not in allowed)


def _host_process(meta: ObjectMeta, spec: PodSpec) -> str:
    setters, _ = _find_values(spec, "windows_options", lambda options: bool(options and options.host_process))
    return f"{setters} must not set securityContext.windowsOptions.hostProcess=true" if setters else ""


# --- restricted


def _privilege_escalation(meta: ObjectMeta, spec: PodSpec) -> str:
    containers = [name for name, c in _contexts(spec) if c.allow_privilege_escalation is not False]
    rule = "must set securityContext.allowPrivilegeEscalation=false"
    return f"{_name_containers(containers)} {rule}" if containers else ""


def _capabilities_restricted(meta: ObjectMeta, spec: PodSpec) -> str:
    keeping = [
        name
        for name, context in _contexts(spec)
        if context.capabilities is None or "ALL" not in context.capabilities.drop
    ]
    rule = 'must set securityContext.capabilities.drop=["ALL"]'
    parts = [f"{_name_containers(keeping)} {rule}"] if keeping else []
    return "; ".join(filter(None, [*parts, _added_capabilities(spec, ("NET_BIND_SERVICE",))]))


_VOLUMES = [
    "config_map", "csi", "downward_api", "empty_dir", "ephemeral", "image", "persistent_volume_claim",
    "projected", "secret",
]  # fmt: skip
_VOLUME_TYPES = {
    field.name: field.encode_name
    for field in structs.fields(Volume)
    if field.name != "name" and field.name not in _VOLUMES
}


def _volumes(meta: ObjectMeta, spec: PodSpec) -> str:
    bad = [v for v in spec.volumes if all(getattr(v, allowed) is None for allowed in _VOLUMES)]
    types = sorted({_type_of(volume) for volume in bad})
    uses = f"{_plural('uses', bad, 'use')} {_plural('restricted volume type', types)} {_join(types)}"
    return f"{_plural('volume', bad)} {_join(volume.name for volume in bad)} {uses}" if bad else ""


def _type_of(volume: Volume) -> str:
    given = (word for name, word in _VOLUME_TYPES.items() if getattr(volume, name) is not None)
    return next(given, "unknown")


def _non_root(meta: ObjectMeta, spec: PodSpec) -> str:
    setters, _ = _find_values(spec, "run_as_non_root", lambda value: value is False)
    if setters:
        return f"{setters} must not set securityContext.runAsNonRoot=false"
    return _unset(spec, "run_as_non_root", "must set securityContext.runAsNonRoot=true")


def _unset(spec: PodSpec, attribute: str, rule: str) -> str:
    """Neither the pod nor some containers set a required field."""
    silent = [name for name, context in _contexts(spec) if getattr(context, attribute) is None]
    is_set = getattr(_pod_context(spec), attribute) is not None
    return "" if is_set or not silent else f"pod or {_name_containers(silent)} {rule}"


def _run_as_root(meta: ObjectMeta, spec: PodSpec) -> str:
    setters, _ = _find_values(spec, "run_as_user", lambda value: value == 0)
    return f"{setters} must not set runAsUser=0" if setters else ""


def _seccomp_restricted(meta: ObjectMeta, spec: PodSpec) -> str:
    rule = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return _seccomp_baseline(meta, spec) or _unset(spec, "seccomp_profile", rule)


CHECKS = (
    PodSecurityCheck("appArmorProfile", BASELINE, 0, _app_armor),
    PodSecurityCheck("capabilities_baseline", BASELINE, 0, _capabilities_baseline),
    PodSecurityCheck("hostNamespaces", BASELINE, 0, _host_namespaces),
    PodSecurityCheck("hostPathVolumes", BASELINE, 0, _host_paths),
    PodSecurityCheck("hostPorts", BASELINE, 0, _host_ports),
    PodSecurityCheck("hostProbesAndHostLifecycle", BASELINE, 34, _probe_hosts),
    PodSecurityCheck("privileged", BASELINE, 0, _privileged_containers),
    PodSecurityCheck("procMount", BASELINE, 0, _proc_mount),
    PodSecurityCheck("procMount", BASELINE, 35, _unless_user_namespace(_proc_mount)),
    PodSecurityCheck("seLinuxOptions", BASELINE, 0, partial(_selinux, _SELINUX_TYPES)),
    PodSecurityCheck("seLinuxOptions", BASELINE, 31, partial(_selinux, _SELINUX_TYPES_31)),
    PodSecurityCheck("seccompProfile_baseline", BASELINE, 0, _seccomp_annotations),
    PodSecurityCheck("seccompProfile_baseline", BASELINE, 19, _seccomp_baseline),
    PodSecurityCheck("sysctls", BASELINE, 0, partial(_sysctls, _SYSCTLS)),
    PodSecurityCheck("sysctls", BASELINE, 27, partial(_sysctls, _SYSCTLS_27)),
    PodSecurityCheck("sysctls", BASELINE, 29, partial(_sysctls, _SYSCTLS_29)),
    PodSecurityCheck("sysctls", BASELINE, 32, partial(_sysctls, _SYSCTLS_32)),
    PodSecurityCheck("windowsHostProcess", BASELINE, 0, _host_process),
    PodSecurityCheck("allowPrivilegeEscalation", RESTRICTED, 8, _privilege_escalation),
    PodSecurityCheck("allowPrivilegeEscalation", RESTRICTED, 25, _unless_windows(_privilege_escalation)),
    PodSecurityCheck("capabilities_restricted", RESTRICTED, 22, _capabilities_restricted),
    PodSecurityCheck("capabilities_restricted", RESTRICTED, 25, _unless_windows(_capabilities_restricted)),
    PodSecurityCheck("procMount_restricted", RESTRICTED, 35, _proc_mount),
    PodSecurityCheck("restrictedVolumes", RESTRICTED, 0, _volumes),
    PodSecurityCheck("runAsNonRoot", RESTRICTED, 0, _non_root),
    PodSecurityCheck("runAsNonRoot", RESTRICTED, 35, _unless_user_namespace(_non_root)),
    PodSecurityCheck("runAsUser", RESTRICTED, 23, _run_as_root),
    PodSecurityCheck("runAsUser", RESTRICTED, 35, _unless_user_namespace(_run_as_root)),
    PodSecurityCheck("seccompProfile_restricted", RESTRICTED, 19, _seccomp_restricted),
    PodSecurityCheck("seccompProfile_restricted", RESTRICTED, 25, _unless_windows(_seccomp_restricted)),
)
# Checks of the restricted level that include one of the baseline level.
REPLACES = {
    "capabilities_restricted": "capabilities_baseline", "procMount_restricted": "procMount",
    "restrictedVolumes": "hostPathVolumes", "seccompProfile_restricted": "seccompProfile_baseline",
}  # fmt: skip
REASONS = {
    "appArmorProfile": "forbidden AppArmor profile", "capabilities_baseline": "non-default capabilities",
    "hostNamespaces": "host namespaces", "hostPathVolumes": "hostPath volumes", "hostPorts": "hostPort",
    "hostProbesAndHostLifecycle": "probe or lifecycle host", "privileged": "privileged",
    "procMount": "procMount", "seLinuxOptions": "seLinuxOptions", "seccompProfile_baseline": "seccompProfile",
    "sysctls": "forbidden sysctls", "windowsHostProcess": "hostProcess",
    "allowPrivilegeEscalation": "allowPrivilegeEscalation != false",
    "capabilities_restricted": "unrestricted capabilities", "procMount_restricted": "procMount",
    "restrictedVolumes": "restricted volume types", "runAsNonRoot": "runAsNonRoot != true",
    "runAsUser": "runAsUser=0", "seccompProfile_restricted": "seccompProfile",
}  # fmt: skip
