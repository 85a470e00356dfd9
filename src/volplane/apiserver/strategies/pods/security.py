"""Security contexts of pods and containers; what a pod's operating system and user namespace rule out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import structs

from volplane.api import core
from volplane.api.errors import Cause, duplicate, forbidden, invalid, not_supported, required_value, too_long
from volplane.apiserver.strategies import checks
from volplane.rules import sysctls

PROFILES = ("Localhost", "RuntimeDefault", "Unconfined")
_LONGEST_PROFILE = 4095
_WINDOWS = "cannot be set for a windows pod"


def validate(path: str, spec: core.PodSpec) -> list[Cause]:
    """All that the pod and its containers say about their security."""
    causes: list[Cause] = []
    for here, container in _containers(path, spec):
        if container.security_context is not None:
            causes += _container(f"{here}.securityContext", spec, container.security_context)
    if spec.security_context is not None:
        causes += _pod(f"{path}.securityContext", spec, spec.security_context)
    return causes + _user_namespace(path, spec) + _operating_system(path, spec)


def _containers(
    path: str, spec: core.PodSpec
) -> Iterator[tuple[str, core.Container | core.EphemeralContainer]]:
    every: tuple[tuple[str, Sequence[core.Container | core.EphemeralContainer]], ...] = (
        ("initContainers", spec.init_containers),
        ("containers", spec.containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    )
    for name, containers in every:
        for at, container in enumerate(containers):
            yield f"{path}.{name}[{at}]", container


def _id(path: str, number: int | None) -> list[Cause]:
    return [] if number is None else checks.between(path, number, 0, checks.MAX_INT32)


def _pod(path: str, spec: core.PodSpec, context: core.PodSecurityContext) -> list[Cause]:
    causes = _id(f"{path}.fsGroup", context.fs_group)
    causes += _id(f"{path}.runAsUser", context.run_as_user)
    causes += _id(f"{path}.runAsGroup", context.run_as_group)
    for at, group in enumerate(context.supplemental_groups):
        causes += _id(f"{path}.supplementalGroups[{at}]", group)
    if spec.share_process_namespace and spec.host_pid:
        message = "ShareProcessNamespace and HostPID cannot both be enabled"
        causes.append(invalid(f"{path}.shareProcessNamespace", True, message))
    causes += _sysctls(f"{path}.sysctls", spec, context)
    if context.fs_group_change_policy is not None:
        here = f"{path}.fsGroupChangePolicy"
        causes += checks.one_of(here, context.fs_group_change_policy, ("Always", "OnRootMismatch"))
    causes += _seccomp(f"{path}.seccompProfile", context.seccomp_profile)
    causes += _app_armor(f"{path}.appArmorProfile", context.app_armor_profile)
    if context.supplemental_groups_policy is not None:
        here = f"{path}.supplementalGroupsPolicy"
        causes += checks.one_of(here, context.supplemental_groups_policy, ("Merge", "Strict"))
    if context.se_linux_change_policy is not None:
        # MountOption is for those who have upstream's gate SELinuxMount, which is off in 1.35.
        causes += checks.one_of(f"{path}.seLinuxChangePolicy", context.se_linux_change_policy, ("Recursive",))
    return causes


def _container(path: str, spec: core.PodSpec, context: core.SecurityContext) -> list[Cause]:
    causes = _id(f"{path}.runAsUser", context.run_as_user) + _id(f"{path}.runAsGroup", context.run_as_group)
    if context.proc_mount is not None:
        causes += checks.one_of(f"{path}.procMount", context.proc_mount, ("Default", "Unmasked"))
        if context.proc_mount == "Unmasked" and spec.host_users is not False:
            message = "`hostUsers` must be false to use `Unmasked`"
            causes.append(invalid(f"{path}.procMount", context.proc_mount, message))
    causes += _seccomp(f"{path}.seccompProfile", context.seccomp_profile)
    if context.allow_privilege_escalation is False:
        message = "cannot set `allowPrivilegeEscalation` to false and"
        if context.privileged:
            causes.append(invalid(path, checks.to_plain(context), f"{message} `privileged` to true"))
        if context.capabilities is not None and "CAP_SYS_ADMIN" in context.capabilities.add:
            message = f"{message} `capabilities.Add` CAP_SYS_ADMIN"
            causes.append(invalid(path, checks.to_plain(context), message))
    return causes + _app_armor(f"{path}.appArmorProfile", context.app_armor_profile)


def _sysctls(path: str, spec: core.PodSpec, context: core.PodSecurityContext) -> list[Cause]:
    causes: list[Cause] = []
    seen: set[str] = set()
    for at, sysctl in enumerate(context.sysctls):
        here, name = f"{path}[{at}].name", sysctl.name
        if not name:
            causes.append(required_value(here))
        elif not sysctls.is_name(name):
            message = (
                f"must have at most {sysctls.LONGEST_NAME} characters and match regex {sysctls.NAME_REGEX}"
            )
            causes.append(invalid(here, name, message))
        elif name in seen:
            causes.append(duplicate(here, name))
        seen.add(name)
        namespace = sysctls.namespace_of(name)
        if spec.host_network and namespace == "net":
            causes.append(invalid(here, name, "may not be specified when 'hostNetwork' is true"))
        elif spec.host_ipc and namespace == "ipc":
            causes.append(invalid(here, name, "may not be specified when 'hostIPC' is true"))
    return causes


def _seccomp(path: str, profile: core.SeccompProfile | None) -> list[Cause]:
    if profile is None:
        return []
    causes: list[Cause] = []
    if not profile.type:
        causes.append(required_value(f"{path}.type", "type is required when seccompProfile is set"))
    elif profile.type not in PROFILES:
        causes.append(not_supported(f"{path}.type", profile.type, PROFILES))
    here, file = f"{path}.localhostProfile", profile.localhost_profile
    if profile.type != "Localhost":
        if file is not None:
            message = "can only be set when seccomp type is Localhost"
            causes.append(invalid(here, checks.to_plain(profile), message))
    elif file is None:
        causes.append(required_value(here, "must be set when seccomp type is Localhost"))
    else:
        causes += checks.relative_path(here, file)
    return causes


def _app_armor(path: str, profile: core.AppArmorProfile | None) -> list[Cause]:
    if profile is None:
        return []
    if not profile.type:
        return [required_value(f"{path}.type", "type is required when appArmorProfile is set")]
    if profile.type not in PROFILES:
        return [not_supported(f"{path}.type", profile.type, PROFILES)]
    here, name = f"{path}.localhostProfile", profile.localhost_profile
    if profile.type != "Localhost":
        message = "can only be set when AppArmor type is Localhost"
        return [] if name is None else [invalid(here, name, message)]
    if not name:
        return [required_value(here, "must be set when AppArmor type is Localhost")]
    causes: list[Cause] = []
    if name.strip() != name:
        causes.append(invalid(here, name, "must not be padded with whitespace"))
    if len(name) > _LONGEST_PROFILE:
        causes.append(too_long(here, _LONGEST_PROFILE))
    return causes


def _user_namespace(path: str, spec: core.PodSpec) -> list[Cause]:
    if spec.host_users is not False:
        return []
    given = (("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc))
    return [forbidden(f"{path}.{name}", "when `hostUsers` is false") for name, value in given if value]


# --- fields that only one operating system has

_LINUX_POD = tuple(
    field
    for field in structs.fields(core.PodSecurityContext)
    if field.name not in ("windows_options", "run_as_non_root")
)
_LINUX_CONTAINER = tuple(
    field
    for field in structs.fields(core.SecurityContext)
    if field.name not in ("windows_options", "run_as_non_root")
)


def _operating_system(path: str, spec: core.PodSpec) -> list[Cause]:
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


def _linux(path: str, spec: core.PodSpec) -> list[Cause]:
    message = "windows options cannot be set for a linux pod"
    causes: list[Cause] = []
    if spec.security_context is not None and spec.security_context.windows_options is not None:
        causes.append(forbidden(f"{path}.securityContext.windowsOptions", message))
    for here, container in _containers(path, spec):
        if container.security_context is not None and container.security_context.windows_options is not None:
            causes.append(forbidden(f"{here}.securityContext.windowsOptions", message))
    return causes


def _windows(path: str, spec: core.PodSpec) -> list[Cause]:
    given = (
        ("hostUsers", spec.host_users is not None),
        ("hostPID", spec.host_pid),
        ("hostIPC", spec.host_ipc),
        ("shareProcessNamespace", spec.share_process_namespace is not None),
    )
    causes = [forbidden(f"{path}.{name}", _WINDOWS) for name, is_set in given if is_set]
    if spec.security_context is not None:
        causes += [
            forbidden(f"{path}.securityContext.{field.encode_name}", _WINDOWS)
            for field in _LINUX_POD
            if getattr(spec.security_context, field.name) not in (None, ())
        ]
    for here, container in _containers(path, spec):
        if container.security_context is not None:
            causes += [
                forbidden(f"{here}.securityContext.{field.encode_name}", _WINDOWS)
                for field in _LINUX_CONTAINER
                if getattr(container.security_context, field.name) is not None
            ]
    return causes
