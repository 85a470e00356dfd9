"""The checks of the Pod Security Standards for the levels baseline and restricted, by version.

A check takes a pod's metadata and spec and returns a violation with upstream's message, or None. The
violations are sorted by the check's id. A newer version of a check replaces the older one, and a check of the
restricted level may replace a weaker one of the baseline level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial

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
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


CheckPod = Callable[[ObjectMeta, PodSpec], PodSecurityViolation | None]


class PodSecurityCheck(Struct, frozen=True):
    id: str
    level: str
    since: int  # the first minor version that has it
    run: CheckPod
    replaces: str = ""  # a check of the baseline level that this one includes


def evaluate(policy: LevelVersion, meta: ObjectMeta, spec: PodSpec) -> list[PodSecurityViolation]:
    """Return the violations of the level, in upstream's order."""
    if policy.level == PRIVILEGED:
        return []
    minor = NEWEST if policy.minor is None else min(policy.minor, NEWEST)
    return [found for run in _checks(policy.level, minor) if (found := run(meta, spec)) is not None]


@cache
def _checks(level: str, minor: int) -> tuple[CheckPod, ...]:
    newest: dict[str, PodSecurityCheck] = {}
    for check in sorted(CHECKS, key=lambda check: check.since):
        if check.since <= minor and level in (check.level, RESTRICTED):
            newest[check.id] = check
    replaced = {check.replaces for check in newest.values()}
    chosen = [check for check in newest.values() if check.id not in replaced]
    return tuple(check.run for check in sorted(chosen, key=lambda check: (check.level, check.id)))


# --- helpers


def _containers(spec: PodSpec) -> Iterator[AnyContainer]:
    yield from spec.init_containers
    yield from spec.containers
    yield from spec.ephemeral_containers


def _contexts(spec: PodSpec) -> Iterator[tuple[str, SecurityContext]]:
    """Yield name and security context of each container that has one."""
    for container in _containers(spec):
        if container.security_context is not None:
            yield container.name, container.security_context


_NO_CONTEXT, _NO_POD_CONTEXT = SecurityContext(), PodSecurityContext()


def _pod_context(spec: PodSpec) -> PodSecurityContext:
    return spec.security_context or _NO_POD_CONTEXT


def _all_contexts(spec: PodSpec) -> Iterator[tuple[str, SecurityContext]]:
    for container in _containers(spec):
        yield container.name, container.security_context or _NO_CONTEXT


def _join(words: Iterable[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def _plural(word: str, items: Sequence[object] | set[str], plural: str = "") -> str:
    return word if len(items) == 1 else plural or f"{word}s"


def _name_containers(containers: Sequence[str]) -> str:
    return f"{_plural('container', containers)} {_join(containers)}"


def _setters(pod: bool, containers: Sequence[str]) -> str:
    """Describe who sets a field: the pod, some containers, or both."""
    return " and ".join([*(["pod"] if pod else []), *([_name_containers(containers)] if containers else [])])


def _is_windows(spec: PodSpec) -> bool:
    return spec.os is not None and spec.os.name == "windows"


def _unless_windows(check: CheckPod) -> CheckPod:
    """Skip Windows pods: validation already forbids the field there."""
    return lambda meta, spec: None if _is_windows(spec) else check(meta, spec)


def _unless_user_namespace(check: CheckPod) -> CheckPod:
    """Skip pods with a user namespace: its root has no privileges on the node."""
    return lambda meta, spec: None if spec.host_users is False else check(meta, spec)


# --- baseline


_APP_ARMOR_PREFIX = "container.apparmor.security.beta.kubernetes.io/"
_SECCOMP_POD = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP_PREFIX = "container.seccomp.security.alpha.kubernetes.io/"
_PROFILES = ("RuntimeDefault", "Localhost")


def _app_armor(meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    def is_bad(profile: AppArmorProfile | None) -> bool:
        return profile is not None and profile.type not in _PROFILES

    own = _pod_context(spec).app_armor_profile
    bad = [(name, c.app_armor_profile) for name, c in _contexts(spec) if is_bad(c.app_armor_profile)]
    annotations = sorted(
        f"{key}={go_quote(value)}"
        for key, value in meta.annotations.items()
        if key.startswith(_APP_ARMOR_PREFIX) and not _is_allowed_annotation(value)
    )
    setters = _setters(is_bad(own), [name for name, _ in bad])
    if annotations:
        setters = " and ".join(filter(None, (setters, _plural("annotation", annotations))))
    if not setters:
        return None
    profiles = [own, *(profile for _, profile in bad)] if is_bad(own) else [profile for _, profile in bad]
    values = [*sorted({profile.type for profile in profiles if profile is not None}), *annotations]
    return PodSecurityViolation(
        _plural("forbidden AppArmor profile", values),
        f"{setters} must not set AppArmor profile type to {_join(values)}",
    )


def _is_allowed_annotation(value: str) -> bool:
    return value in ("", "runtime/default") or value.startswith("localhost/")


_DEFAULT_CAPABILITIES = frozenset([
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE",
    "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
])  # fmt: skip


def _capabilities_baseline(meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    containers, added = _added_capabilities(spec, _DEFAULT_CAPABILITIES)
    if not containers:
        return None
    return PodSecurityViolation("non-default capabilities", _must_not_add(containers, added))


def _added_capabilities(spec: PodSpec, allowed: Iterable[str]) -> tuple[list[str], set[str]]:
    containers, every = [], set()
    for name, context in _contexts(spec):
        if context.capabilities is not None and (added := set(context.capabilities.add).difference(allowed)):
            containers.append(name)
            every |= added
    return containers, every


def _must_not_add(containers: Sequence[str], added: set[str]) -> str:
    names = _join(sorted(added))
    return f"{_name_containers(containers)} must not include {names} in securityContext.capabilities.add"


def _host_namespaces(meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    given = (("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc))
    shared = [f"{name}=true" for name, value in given if value]
    return PodSecurityViolation("host namespaces", ", ".join(shared)) if shared else None


def _host_paths(meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    volumes = [volume.name for volume in spec.volumes if volume.host_path is not None]
    if not volumes:
        return None
    return PodSecurityViolation("hostPath volumes", f"{_plural('volume', volumes)} {_join(volumes)}")


def _host_ports(meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    containers = [c.name for c in _containers(spec) if any(port.host_port for port in c.ports)]
    if not containers:
        return None
    ports = sorted({str(port.host_port) for c in _containers(spec) for port in c.ports if port.host_port})
    uses = f"{_plural('uses', containers, 'use')} {_plural('hostPort', ports)}"
    return PodSecurityViolation("hostPort", f"{_name_containers(containers)} {uses} {', '.join(ports)}")


def _probe_hosts(meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    hosts = {c.name: found for c in _containers(spec) if (found := set(_hosts(c)))}
    if not hosts:
        return None
    containers, every = sorted(hosts), sorted(set().union(*hosts.values()))
    what = "probe or lifecycle host"
    uses = f"{_plural('uses', containers, 'use')} {_plural(what, every)}"
    return PodSecurityViolation(what, f"{_name_containers(containers)} {uses} {_join(every)}")


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


def _privileged_containers(meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    containers = [name for name, context in _contexts(spec) if context.privileged]
    if not containers:
        return None
    return PodSecurityViolation(
        "privileged", f"{_name_containers(containers)} must not set securityContext.privileged=true"
    )


def _proc_mount(meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    bad = [(name, c.proc_mount) for name, c in _contexts(spec) if c.proc_mount not in (None, "Default")]
    if not bad:
        return None
    containers, values = [name for name, _ in bad], sorted({value for _, value in bad if value is not None})
    return PodSecurityViolation(
        "procMount",
        f"{_name_containers(containers)} must not set securityContext.procMount to {_join(values)}",
    )


_SELINUX_TYPES = frozenset({"", "container_t", "container_init_t", "container_kvm_t"})


def _selinux(types: frozenset[str], meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    def is_bad(options: SELinuxOptions | None) -> bool:
        return options is not None and bool(options.type not in types or options.user or options.role)

    own = _pod_context(spec).se_linux_options
    bad = [(name, c.se_linux_options) for name, c in _contexts(spec) if is_bad(c.se_linux_options)]
    setters = _setters(is_bad(own), [name for name, _ in bad])
    if not setters:
        return None
    given = [options for options in (own, *(options for _, options in bad)) if options is not None]
    wrong = sorted({options.type for options in given} - types)
    words = [f"{_plural('type', wrong)} {_join(wrong)}"] if wrong else []
    words += ["user may not be set"] if any(options.user for options in given) else []
    words += ["role may not be set"] if any(options.role for options in given) else []
    return PodSecurityViolation(
        "seLinuxOptions", f"{setters} set forbidden securityContext.seLinuxOptions: {'; '.join(words)}"
    )


def _seccomp_annotations(meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    keys = [_SECCOMP_POD, *(f"{_SECCOMP_PREFIX}{container.name}" for container in _containers(spec))]
    wrong = {
        f"{key}={go_quote(value)}"
        for key in keys
        if (value := meta.annotations.get(key)) is not None
        and value not in ("runtime/default", "docker/default")
        and not value.startswith("localhost/")
    }
    if not wrong:
        return None
    return PodSecurityViolation(
        "seccompProfile", f"forbidden {_plural('annotation', wrong)} {', '.join(sorted(wrong))}"
    )


def _is_bad_seccomp(profile: SeccompProfile | None) -> bool:
    return profile is not None and profile.type not in _PROFILES


def _seccomp_baseline(meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    own = _pod_context(spec).seccomp_profile
    bad = [(name, c.seccomp_profile) for name, c in _contexts(spec) if _is_bad_seccomp(c.seccomp_profile)]
    setters = _setters(_is_bad_seccomp(own), [name for name, _ in bad])
    if not setters:
        return None
    profiles = [profile for _, profile in bad] + ([own] if _is_bad_seccomp(own) else [])
    values = sorted({profile.type for profile in profiles if profile is not None})
    detail = f"{setters} must not set securityContext.seccompProfile.type to {_join(values)}"
    return PodSecurityViolation("seccompProfile", detail)


_SYSCTLS = frozenset({
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range", "net.ipv4.ip_unprivileged_port_start",
})  # fmt: skip
_SYSCTLS_27 = _SYSCTLS | {"net.ipv4.ip_local_reserved_ports"}
_SYSCTLS_29 = _SYSCTLS_27 | {
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}
_SYSCTLS_32 = _SYSCTLS_29 | {"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"}


def _sysctls(allowed: frozenset[str], meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    wrong = [sysctl.name for sysctl in _pod_context(spec).sysctls if sysctl.name not in allowed]
    return PodSecurityViolation("forbidden sysctls", ", ".join(wrong)) if wrong else None


def _host_process(meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    def is_bad(context: SecurityContext | PodSecurityContext) -> bool:
        return context.windows_options is not None and bool(context.windows_options.host_process)

    containers = [name for name, context in _contexts(spec) if is_bad(context)]
    setters = _setters(is_bad(_pod_context(spec)), containers)
    if not setters:
        return None
    return PodSecurityViolation(
        "hostProcess", f"{setters} must not set securityContext.windowsOptions.hostProcess=true"
    )


# --- restricted


def _privilege_escalation(meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    containers = [name for name, c in _all_contexts(spec) if c.allow_privilege_escalation is not False]
    if not containers:
        return None
    return PodSecurityViolation(
        "allowPrivilegeEscalation != false",
        f"{_name_containers(containers)} must set securityContext.allowPrivilegeEscalation=false",
    )


def _capabilities_restricted(meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    keeping = [
        name
        for name, context in _all_contexts(spec)
        if context.capabilities is None or "ALL" not in context.capabilities.drop
    ]
    adding, added = _added_capabilities(spec, ("NET_BIND_SERVICE",))
    words = []
    if keeping:
        words.append(f'{_name_containers(keeping)} must set securityContext.capabilities.drop=["ALL"]')
    if adding:
        words.append(_must_not_add(adding, added))
    return PodSecurityViolation("unrestricted capabilities", "; ".join(words)) if words else None


_VOLUMES = [
    "config_map", "csi", "downward_api", "empty_dir", "ephemeral", "image", "persistent_volume_claim",
    "projected", "secret",
]  # fmt: skip
_VOLUME_TYPES = {
    field.name: field.encode_name
    for field in structs.fields(Volume)
    if field.name != "name" and field.name not in _VOLUMES
}


def _volumes(meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    bad = [v for v in spec.volumes if all(getattr(v, allowed) is None for allowed in _VOLUMES)]
    if not bad:
        return None
    types = sorted({_type_of(volume) for volume in bad})
    uses = f"{_plural('uses', bad, 'use')} {_plural('restricted volume type', types)} {_join(types)}"
    return PodSecurityViolation(
        "restricted volume types", f"{_plural('volume', bad)} {_join(volume.name for volume in bad)} {uses}"
    )


def _type_of(volume: Volume) -> str:
    given = (word for name, word in _VOLUME_TYPES.items() if getattr(volume, name) is not None)
    return next(given, "unknown")


def _non_root(meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    own = _pod_context(spec).run_as_non_root
    saying_no = [name for name, context in _contexts(spec) if context.run_as_non_root is False]
    if setters := _setters(own is False, saying_no):
        return PodSecurityViolation(
            "runAsNonRoot != true", f"{setters} must not set securityContext.runAsNonRoot=false"
        )
    silent = [name for name, context in _all_contexts(spec) if context.run_as_non_root is None]
    if own or not silent:
        return None
    return PodSecurityViolation(
        "runAsNonRoot != true",
        f"pod or {_name_containers(silent)} must set securityContext.runAsNonRoot=true",
    )


def _run_as_root(meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    containers = [name for name, context in _contexts(spec) if context.run_as_user == 0]
    setters = _setters(_pod_context(spec).run_as_user == 0, containers)
    return PodSecurityViolation("runAsUser=0", f"{setters} must not set runAsUser=0") if setters else None


def _seccomp_restricted(meta: ObjectMeta, spec: PodSpec) -> PodSecurityViolation | None:
    if found := _seccomp_baseline(meta, spec):
        return found
    silent = [name for name, context in _all_contexts(spec) if context.seccomp_profile is None]
    if _pod_context(spec).seccomp_profile is not None or not silent:
        return None
    detail = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return PodSecurityViolation("seccompProfile", f"pod or {_name_containers(silent)} {detail}")


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
    PodSecurityCheck(
        "seLinuxOptions", BASELINE, 31, partial(_selinux, _SELINUX_TYPES | {"container_engine_t"})
    ),
    PodSecurityCheck("seccompProfile_baseline", BASELINE, 0, _seccomp_annotations),
    PodSecurityCheck("seccompProfile_baseline", BASELINE, 19, _seccomp_baseline),
    PodSecurityCheck("sysctls", BASELINE, 0, partial(_sysctls, _SYSCTLS)),
    PodSecurityCheck("sysctls", BASELINE, 27, partial(_sysctls, _SYSCTLS_27)),
    PodSecurityCheck("sysctls", BASELINE, 29, partial(_sysctls, _SYSCTLS_29)),
    PodSecurityCheck("sysctls", BASELINE, 32, partial(_sysctls, _SYSCTLS_32)),
    PodSecurityCheck("windowsHostProcess", BASELINE, 0, _host_process),
    PodSecurityCheck("allowPrivilegeEscalation", RESTRICTED, 8, _privilege_escalation),
    PodSecurityCheck("allowPrivilegeEscalation", RESTRICTED, 25, _unless_windows(_privilege_escalation)),
    PodSecurityCheck(
        "capabilities_restricted", RESTRICTED, 22, _capabilities_restricted, "capabilities_baseline"
    ),
    PodSecurityCheck(
        "capabilities_restricted",
        RESTRICTED,
        25,
        _unless_windows(_capabilities_restricted),
        "capabilities_baseline",
    ),
    PodSecurityCheck("procMount_restricted", RESTRICTED, 35, _proc_mount, "procMount"),
    PodSecurityCheck("restrictedVolumes", RESTRICTED, 0, _volumes, "hostPathVolumes"),
    PodSecurityCheck("runAsNonRoot", RESTRICTED, 0, _non_root),
    PodSecurityCheck("runAsNonRoot", RESTRICTED, 35, _unless_user_namespace(_non_root)),
    PodSecurityCheck("runAsUser", RESTRICTED, 23, _run_as_root),
    PodSecurityCheck("runAsUser", RESTRICTED, 35, _unless_user_namespace(_run_as_root)),
    PodSecurityCheck(
        "seccompProfile_restricted", RESTRICTED, 19, _seccomp_restricted, "seccompProfile_baseline"
    ),
    PodSecurityCheck(
        "seccompProfile_restricted",
        RESTRICTED,
        25,
        _unless_windows(_seccomp_restricted),
        "seccompProfile_baseline",
    ),
)
