"""Security contexts of pods and containers; what a pod's operating system and user namespace rule out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import structs

from volplane.api.core import (
    AppArmorProfile,
    Container,
    EphemeralContainer,
    PodSecurityContext,
    PodSpec,
    SeccompProfile,
    SecurityContext,
)
from volplane.api.errors import Cause, duplicate, forbidden, invalid, not_supported, required_value, too_long
from volplane.apiserver.strategies import checks
from volplane.rules import sysctls

PROFILES = ("Localhost", "RuntimeDefault", "Unconfined")
_LONGEST_PROFILE = 4095
_WINDOWS = "cannot be set for a windows pod"


def validate(path: str, spec: PodSpec) -> list[Cause]:
    """All that the pod and its containers say about their security."""
    wrong: list[Cause] = []
    for here, container in _containers(path, spec):
        if container.security_context is not None:
            wrong += _container(f"{here}.securityContext", spec, container.security_context)
    if spec.security_context is not None:
        wrong += _pod(f"{path}.securityContext", spec, spec.security_context)
    return wrong + _user_namespace(path, spec) + _operating_system(path, spec)


def _containers(path: str, spec: PodSpec) -> Iterator[tuple[str, Container | EphemeralContainer]]:
    every: tuple[tuple[str, Sequence[Container | EphemeralContainer]], ...] = (
        ("initContainers", spec.init_containers),
        ("containers", spec.containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    )
    for name, containers in every:
        for at, container in enumerate(containers):
            yield f"{path}.{name}[{at}]", container


def _id(path: str, number: int | None) -> list[Cause]:
    return [] if number is None else checks.between(path, number, 0, checks.MAX_INT32)


def _pod(path: str, spec: PodSpec, context: PodSecurityContext) -> list[Cause]:
    wrong = _id(f"{path}.fsGroup", context.fs_group)
    wrong += _id(f"{path}.runAsUser", context.run_as_user)
    wrong += _id(f"{path}.runAsGroup", context.run_as_group)
    for at, group in enumerate(context.supplemental_groups):
        wrong += _id(f"{path}.supplementalGroups[{at}]", group)
    if spec.share_process_namespace and spec.host_pid:
        told = "ShareProcessNamespace and HostPID cannot both be enabled"
        wrong.append(invalid(f"{path}.shareProcessNamespace", True, told))
    wrong += _sysctls(f"{path}.sysctls", spec, context)
    if context.fs_group_change_policy is not None:
        here = f"{path}.fsGroupChangePolicy"
        wrong += checks.one_of(here, context.fs_group_change_policy, ("Always", "OnRootMismatch"))
    wrong += _seccomp(f"{path}.seccompProfile", context.seccomp_profile)
    wrong += _app_armor(f"{path}.appArmorProfile", context.app_armor_profile)
    if context.supplemental_groups_policy is not None:
        here = f"{path}.supplementalGroupsPolicy"
        wrong += checks.one_of(here, context.supplemental_groups_policy, ("Merge", "Strict"))
    if context.se_linux_change_policy is not None:
        # MountOption is for those who have upstream's gate SELinuxMount, which is off in 1.35.
        wrong += checks.one_of(f"{path}.seLinuxChangePolicy", context.se_linux_change_policy, ("Recursive",))
    return wrong


def _container(path: str, spec: PodSpec, context: SecurityContext) -> list[Cause]:
    wrong = _id(f"{path}.runAsUser", context.run_as_user) + _id(f"{path}.runAsGroup", context.run_as_group)
    if context.proc_mount is not None:
        wrong += checks.one_of(f"{path}.procMount", context.proc_mount, ("Default", "Unmasked"))
        if context.proc_mount == "Unmasked" and spec.host_users is not False:
            told = "`hostUsers` must be false to use `Unmasked`"
            wrong.append(invalid(f"{path}.procMount", context.proc_mount, told))
    wrong += _seccomp(f"{path}.seccompProfile", context.seccomp_profile)
    if context.allow_privilege_escalation is False:
        told = "cannot set `allowPrivilegeEscalation` to false and"
        if context.privileged:
            wrong.append(invalid(path, checks.to_plain(context), f"{told} `privileged` to true"))
        if context.capabilities is not None and "CAP_SYS_ADMIN" in context.capabilities.add:
            told = f"{told} `capabilities.Add` CAP_SYS_ADMIN"
            wrong.append(invalid(path, checks.to_plain(context), told))
    return wrong + _app_armor(f"{path}.appArmorProfile", context.app_armor_profile)


def _sysctls(path: str, spec: PodSpec, context: PodSecurityContext) -> list[Cause]:
    wrong: list[Cause] = []
    seen: set[str] = set()
    for at, sysctl in enumerate(context.sysctls):
        here, name = f"{path}[{at}].name", sysctl.name
        if not name:
            wrong.append(required_value(here))
        elif not sysctls.is_name(name):
            told = f"must have at most {sysctls.LONGEST_NAME} characters and match regex {sysctls.NAME_REGEX}"
            wrong.append(invalid(here, name, told))
        elif name in seen:
            wrong.append(duplicate(here, name))
        seen.add(name)
        namespace = sysctls.namespace_of(name)
        if spec.host_network and namespace == "net":
            wrong.append(invalid(here, name, "may not be specified when 'hostNetwork' is true"))
        elif spec.host_ipc and namespace == "ipc":
            wrong.append(invalid(here, name, "may not be specified when 'hostIPC' is true"))
    return wrong


def _seccomp(path: str, profile: SeccompProfile | None) -> list[Cause]:
    if profile is None:
        return []
    wrong: list[Cause] = []
    if not profile.type:
        wrong.append(required_value(f"{path}.type", "type is required when seccompProfile is set"))
    elif profile.type not in PROFILES:
        wrong.append(not_supported(f"{path}.type", profile.type, PROFILES))
    here, file = f"{path}.localhostProfile", profile.localhost_profile
    if profile.type != "Localhost":
        if file is not None:
            told = "can only be set when seccomp type is Localhost"
            wrong.append(invalid(here, checks.to_plain(profile), told))
    elif file is None:
        wrong.append(required_value(here, "must be set when seccomp type is Localhost"))
    else:
        wrong += checks.relative_path(here, file)
    return wrong


def _app_armor(path: str, profile: AppArmorProfile | None) -> list[Cause]:
    if profile is None:
        return []
    if not profile.type:
        return [required_value(f"{path}.type", "type is required when appArmorProfile is set")]
    if profile.type not in PROFILES:
        return [not_supported(f"{path}.type", profile.type, PROFILES)]
    here, name = f"{path}.localhostProfile", profile.localhost_profile
    if profile.type != "Localhost":
        told = "can only be set when AppArmor type is Localhost"
        return [] if name is None else [invalid(here, name, told)]
    if not name:
        return [required_value(here, "must be set when AppArmor type is Localhost")]
    wrong: list[Cause] = []
    if name.strip() != name:
        wrong.append(invalid(here, name, "must not be padded with whitespace"))
    if len(name) > _LONGEST_PROFILE:
        wrong.append(too_long(here, _LONGEST_PROFILE))
    return wrong


def _user_namespace(path: str, spec: PodSpec) -> list[Cause]:
    if spec.host_users is not False:
        return []
    given = (("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc))
    return [forbidden(f"{path}.{name}", "when `hostUsers` is false") for name, value in given if value]


# --- fields that only one operating system has

_LINUX_POD = tuple(
    field
    for field in structs.fields(PodSecurityContext)
    if field.name not in ("windows_options", "run_as_non_root")
)
_LINUX_CONTAINER = tuple(
    field
    for field in structs.fields(SecurityContext)
    if field.name not in ("windows_options", "run_as_non_root")
)


def _operating_system(path: str, spec: PodSpec) -> list[Cause]:
    if spec.os is None:
        return []
    match spec.os.name:
        case "linux":
            return _linux(path, spec)
        case "windows":
            return _windows(path, spec)
        case "":
            return [required_value(f"{path}.os.name", "cannot be empty")]
        case other:
            return [not_supported(f"{path}.os", other, ("linux", "windows"))]


def _linux(path: str, spec: PodSpec) -> list[Cause]:
    told = "windows options cannot be set for a linux pod"
    wrong: list[Cause] = []
    if spec.security_context is not None and spec.security_context.windows_options is not None:
        wrong.append(forbidden(f"{path}.securityContext.windowsOptions", told))
    for here, container in _containers(path, spec):
        if container.security_context is not None and container.security_context.windows_options is not None:
            wrong.append(forbidden(f"{here}.securityContext.windowsOptions", told))
    return wrong


def _windows(path: str, spec: PodSpec) -> list[Cause]:
    given = (
        ("hostUsers", spec.host_users is not None),
        ("hostPID", spec.host_pid),
        ("hostIPC", spec.host_ipc),
        ("shareProcessNamespace", spec.share_process_namespace is not None),
    )
    wrong = [forbidden(f"{path}.{name}", _WINDOWS) for name, is_set in given if is_set]
    if spec.security_context is not None:
        wrong += [
            forbidden(f"{path}.securityContext.{field.encode_name}", _WINDOWS)
            for field in _LINUX_POD
            if getattr(spec.security_context, field.name) not in (None, ())
        ]
    for here, container in _containers(path, spec):
        if container.security_context is not None:
            wrong += [
                forbidden(f"{here}.securityContext.{field.encode_name}", _WINDOWS)
                for field in _LINUX_CONTAINER
                if getattr(container.security_context, field.name) is not None
            ]
    return wrong
