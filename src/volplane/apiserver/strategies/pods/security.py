"""Security contexts of pods and containers, and fields that the pod's OS or user namespace forbids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import structs

from volplane.api import core
from volplane.api.errors import (
    Causes,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required_value,
    too_long,
)
from volplane.apiserver.strategies import checks
from volplane.rules import sysctls

PROFILES = ("Localhost", "RuntimeDefault", "Unconfined")
_LONGEST_PROFILE = 4095
_WINDOWS = "cannot be set for a windows pod"


def validate(path: str, spec: core.PodSpec) -> Causes:
    """Validate the security context of the pod and of its containers."""
    for here, container in _containers(path, spec):
        if container.security_context is not None:
            yield from _container(f"{here}.securityContext", spec, container.security_context)
    if spec.security_context is not None:
        yield from _pod(f"{path}.securityContext", spec, spec.security_context)
    yield from _user_namespace(path, spec)
    yield from _operating_system(path, spec)


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


def _id(path: str, number: int | None) -> Causes:
    return [] if number is None else checks.between(path, number, 0, checks.MAX_INT32)


def _pod(path: str, spec: core.PodSpec, context: core.PodSecurityContext) -> Causes:
    yield from _id(f"{path}.fsGroup", context.fs_group)
    yield from _id(f"{path}.runAsUser", context.run_as_user)
    yield from _id(f"{path}.runAsGroup", context.run_as_group)
    for at, group in enumerate(context.supplemental_groups):
        yield from _id(f"{path}.supplementalGroups[{at}]", group)
    if spec.share_process_namespace and spec.host_pid:
        message = "ShareProcessNamespace and HostPID cannot both be enabled"
        yield invalid(f"{path}.shareProcessNamespace", True, message)
    yield from _sysctls(f"{path}.sysctls", spec, context)
    if context.fs_group_change_policy is not None:
        here = f"{path}.fsGroupChangePolicy"
        yield from checks.one_of(here, context.fs_group_change_policy, ("Always", "OnRootMismatch"))
    yield from _seccomp(f"{path}.seccompProfile", context.seccomp_profile)
    yield from _app_armor(f"{path}.appArmorProfile", context.app_armor_profile)
    if context.supplemental_groups_policy is not None:
        here = f"{path}.supplementalGroupsPolicy"
        yield from checks.one_of(here, context.supplemental_groups_policy, ("Merge", "Strict"))
    if context.se_linux_change_policy is not None:
        # MountOption needs upstream's feature gate SELinuxMount, which is off in 1.35.
        yield from checks.one_of(
            f"{path}.seLinuxChangePolicy", context.se_linux_change_policy, ("Recursive",)
        )


def _container(path: str, spec: core.PodSpec, context: core.SecurityContext) -> Causes:
    yield from _id(f"{path}.runAsUser", context.run_as_user)
    yield from _id(f"{path}.runAsGroup", context.run_as_group)
    if context.proc_mount is not None:
        yield from checks.one_of(f"{path}.procMount", context.proc_mount, ("Default", "Unmasked"))
        if context.proc_mount == "Unmasked" and spec.host_users is not False:
            message = "`hostUsers` must be false to use `Unmasked`"
            yield invalid(f"{path}.procMount", context.proc_mount, message)
    yield from _seccomp(f"{path}.seccompProfile", context.seccomp_profile)
    if context.allow_privilege_escalation is False:
        message = "cannot set `allowPrivilegeEscalation` to false and"
        if context.privileged:
            yield invalid(path, checks.to_plain(context), f"{message} `privileged` to true")
        if context.capabilities is not None and "CAP_SYS_ADMIN" in context.capabilities.add:
            yield invalid(path, checks.to_plain(context), f"{message} `capabilities.Add` CAP_SYS_ADMIN")
    yield from _app_armor(f"{path}.appArmorProfile", context.app_armor_profile)


def _sysctls(path: str, spec: core.PodSpec, context: core.PodSecurityContext) -> Causes:
    seen: set[str] = set()
    for at, sysctl in enumerate(context.sysctls):
        here, name = f"{path}[{at}].name", sysctl.name
        if not name:
            yield required_value(here)
        elif not sysctls.is_name(name):
            message = (
                f"must have at most {sysctls.LONGEST_NAME} characters and match regex {sysctls.NAME_REGEX}"
            )
            yield invalid(here, name, message)
        elif name in seen:
            yield duplicate(here, name)
        seen.add(name)
        namespace = sysctls.namespace_of(name)
        if spec.host_network and namespace == "net":
            yield invalid(here, name, "may not be specified when 'hostNetwork' is true")
        elif spec.host_ipc and namespace == "ipc":
            yield invalid(here, name, "may not be specified when 'hostIPC' is true")


def _seccomp(path: str, profile: core.SeccompProfile | None) -> Causes:
    if profile is None:
        return
    if not profile.type:
        yield required_value(f"{path}.type", "type is required when seccompProfile is set")
    elif profile.type not in PROFILES:
        yield not_supported(f"{path}.type", profile.type, PROFILES)
    here, file = f"{path}.localhostProfile", profile.localhost_profile
    if profile.type != "Localhost":
        if file is not None:
            yield invalid(here, checks.to_plain(profile), "can only be set when seccomp type is Localhost")
    elif file is None:
        yield required_value(here, "must be set when seccomp type is Localhost")
    else:
        yield from checks.relative_path(here, file)


def _app_armor(path: str, profile: core.AppArmorProfile | None) -> Causes:
    if profile is None:
        return
    if not profile.type:
        yield required_value(f"{path}.type", "type is required when appArmorProfile is set")
        return
    if profile.type not in PROFILES:
        yield not_supported(f"{path}.type", profile.type, PROFILES)
        return
    here, name = f"{path}.localhostProfile", profile.localhost_profile
    if profile.type != "Localhost":
        message = "can only be set when AppArmor type is Localhost"
        if name is not None:
            yield invalid(here, name, message)
        return
    if not name:
        yield required_value(here, "must be set when AppArmor type is Localhost")
        return
    if name.strip() != name:
        yield invalid(here, name, "must not be padded with whitespace")
    if len(name) > _LONGEST_PROFILE:
        yield too_long(here, _LONGEST_PROFILE)


def _user_namespace(path: str, spec: core.PodSpec) -> Causes:
    if spec.host_users is not False:
        return
    given = (("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc))
    yield from [forbidden(f"{path}.{name}", "when `hostUsers` is false") for name, value in given if value]


# Fields of one operating system

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


def _operating_system(path: str, spec: core.PodSpec) -> Causes:
    if spec.os is None:
        return
    match spec.os.name:
        case "linux":
            yield from _linux(path, spec)
        case "windows":
            yield from _windows(path, spec)
        case "":
            yield required_value(f"{path}.os.name", "cannot be empty")
        case other:
            yield not_supported(f"{path}.os", other, ("linux", "windows"))


def _linux(path: str, spec: core.PodSpec) -> Causes:
    message = "windows options cannot be set for a linux pod"
    if spec.security_context is not None and spec.security_context.windows_options is not None:
        yield forbidden(f"{path}.securityContext.windowsOptions", message)
    for here, container in _containers(path, spec):
        if container.security_context is not None and container.security_context.windows_options is not None:
            yield forbidden(f"{here}.securityContext.windowsOptions", message)


def _windows(path: str, spec: core.PodSpec) -> Causes:
    given = (
        ("hostUsers", spec.host_users is not None),
        ("hostPID", spec.host_pid),
        ("hostIPC", spec.host_ipc),
        ("shareProcessNamespace", spec.share_process_namespace is not None),
    )
    yield from [forbidden(f"{path}.{name}", _WINDOWS) for name, is_set in given if is_set]
    if spec.security_context is not None:
        yield from [
            forbidden(f"{path}.securityContext.{field.encode_name}", _WINDOWS)
            for field in _LINUX_POD
            if getattr(spec.security_context, field.name) not in (None, ())
        ]
    for here, container in _containers(path, spec):
        if container.security_context is not None:
            yield from [
                forbidden(f"{here}.securityContext.{field.encode_name}", _WINDOWS)
                for field in _LINUX_CONTAINER
                if getattr(container.security_context, field.name) is not None
            ]
