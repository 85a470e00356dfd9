"""Resolve the security contexts of a pod and its containers to what a runtime applies. Pure.

What cannot be applied is refused: a whole pod before anything of it is started (`check_pod`,
`find_sandbox_problem`), a container when it is created (`resolve_security`). Nothing is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from volplane.api.core import (
    Capabilities,
    Container,
    Pod,
    PodSecurityContext,
    SeccompProfile,
    SecurityContext,
)
from volplane.node.admission import Rejection
from volplane.node.containers.base import DEFAULT_CAPABILITIES, ProcMount
from volplane.node.pods.environment import ContainerConfigError, ContainerCreateError
from volplane.rules import sysctls

SYSCTL_FORBIDDEN, APP_ARMOR, WRONG_OS = "SysctlForbidden", "AppArmor", "PodOSNotSupported"
NO_APP_ARMOR = "AppArmor is not enabled on the host"
NO_APP_ARMOR_SUPPORT = "this node's container runtime cannot apply AppArmor profiles"

_OWN_PROCESSES = "each container of this node sees its own processes only"
_ELSEWHERE = "remove it, or run the pod on a node with a container runtime"
_APP_ARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"
_UNCONFINED = "Unconfined"

# In the kernel's order.
_CAPABILITIES = """
CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT
SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL
SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""
CAPABILITIES = tuple(f"CAP_{name}" for name in _CAPABILITIES.split())


class ContainerSecurity(Struct, frozen=True):
    """The security settings of one container."""

    user: int | None = None
    group: int | None = None
    groups: tuple[int, ...] = ()
    privileged: bool = False
    capabilities: tuple[str, ...] | None = None  # None: the default set
    no_new_privs: bool = False
    readonly_root: bool = False
    seccomp: Literal["Unconfined", "RuntimeDefault", "Localhost"] = "Unconfined"
    seccomp_file: str = ""  # for Localhost: relative to the kubelet's directory of profiles
    sysctls: Mapping[str, str] = {}  # names with dots, or paths with slashes
    proc_mount: ProcMount = "Default"

    @property
    def effective_capabilities(self) -> tuple[str, ...]:
        if self.privileged:
            return CAPABILITIES
        return DEFAULT_CAPABILITIES if self.capabilities is None else self.capabilities


# --- whole pods


def check_pod(pod: Pod, allowed: sysctls.AllowedSysctls, app_armor: str = NO_APP_ARMOR) -> Rejection | None:
    """The kubelet's rejection of the pod, or None. `app_armor`: why no profile can be enforced."""
    if pod.spec.os is not None and pod.spec.os.name != "linux":
        return Rejection(WRONG_OS, "Failed to admit pod as the OS field doesn't match node OS")
    for sysctl in (pod.spec.security_context or PodSecurityContext()).sysctls:
        why = allowed.refusal(sysctl.name, host_network=pod.spec.host_network, host_ipc=pod.spec.host_ipc)
        if why:
            return Rejection(SYSCTL_FORBIDDEN, f"forbidden sysctl: {why}")
    # An ephemeral container is refused when it is created: the others run already.
    if any(_wants_app_armor(pod, c) for c in (*pod.spec.init_containers, *pod.spec.containers)):
        return Rejection(APP_ARMOR, f"Cannot enforce AppArmor: {app_armor}")
    return None


def _wants_app_armor(pod: Pod, container: Container) -> bool:
    own = container.security_context.app_armor_profile if container.security_context else None
    if own is not None:
        return own.type != _UNCONFINED
    annotation = pod.metadata.annotations.get(f"{_APP_ARMOR_ANNOTATION}{container.name}")
    if annotation is not None:
        return annotation not in ("", "unconfined")
    shared = pod.spec.security_context.app_armor_profile if pod.spec.security_context else None
    return shared is not None and shared.type != _UNCONFINED


def find_sandbox_problem(pod: Pod, *, as_processes: bool) -> str:
    """Why the pod cannot have the namespaces or the runtime it asks for; "" if it can.

    `as_processes`: it has containers that run as processes, because the node has no container runtime.
    """
    if pod.spec.host_users is False:
        return (
            "hostUsers is false, and this node's container runtime has no user namespaces: set it to true or "
            "remove it"
        )
    if as_processes and pod.spec.share_process_namespace:
        return f"shareProcessNamespace is true, and {_OWN_PROCESSES}: {_ELSEWHERE}"
    if as_processes and pod.spec.runtime_class_name:
        return (
            f'failed to get sandbox runtime: runtimeClassName is "{pod.spec.runtime_class_name}", and this '
            f"node has no container runtime: {_ELSEWHERE}"
        )
    return ""


def check_target(pod: Pod, container: Container) -> None:
    """Refuse an ephemeral container that asks to see the processes of another one.

    Raises ContainerCreateError.
    """
    if pod.spec.host_pid:  # it sees all processes of the node
        return
    for each in pod.spec.ephemeral_containers:
        if each.name == container.name and each.target_container_name:
            raise ContainerCreateError(
                f'targetContainerName is "{each.target_container_name}", and {_OWN_PROCESSES}: leave it out, '
                "or run the pod on a node with a container runtime"
            )


# --- containers


def resolve_security(pod: Pod, container: Container, *, seccomp_default: bool = False) -> ContainerSecurity:
    """Resolve a container's security; its own fields override the pod's. Raises ContainerConfigError."""
    if _wants_app_armor(pod, container):
        raise ContainerCreateError(f"Cannot enforce AppArmor: {NO_APP_ARMOR_SUPPORT}")
    own = container.security_context or SecurityContext()
    shared = pod.spec.security_context or PodSecurityContext()
    profile = _seccomp(own, shared, seccomp_default=seccomp_default)
    return ContainerSecurity(
        user=_first(own.run_as_user, shared.run_as_user),
        group=_first(own.run_as_group, shared.run_as_group),
        groups=_groups(shared),
        privileged=bool(own.privileged),
        capabilities=None if own.privileged else resolve_capabilities(own.capabilities),
        no_new_privs=own.allow_privilege_escalation is False,
        readonly_root=bool(own.read_only_root_filesystem),
        seccomp=profile.type,  # type: ignore[arg-type]  # _seccomp has checked it
        seccomp_file=profile.localhost_profile or "",
        sysctls={sysctls.plain(sysctl.name): sysctl.value for sysctl in shared.sysctls},
        proc_mount=_proc_mount(own.proc_mount),
    )


def check_user(pod: Pod, container: Container) -> None:
    """Enforce runAsNonRoot. Images are not read, so a container without runAsUser runs as root.

    Raises ContainerConfigError.
    """
    own = container.security_context or SecurityContext()
    shared = pod.spec.security_context or PodSecurityContext()
    not_root = shared.run_as_non_root if own.run_as_non_root is None else own.run_as_non_root
    if not_root and not _first(own.run_as_user, shared.run_as_user):
        raise ContainerConfigError("container has runAsNonRoot and image will run as root")


def check_image_user(pod: Pod, container: Container, user: int | None, user_name: str) -> None:
    """Enforce runAsNonRoot for a container whose image has this user. Raises ContainerConfigError."""
    own = container.security_context or SecurityContext()
    shared = pod.spec.security_context or PodSecurityContext()
    not_root = shared.run_as_non_root if own.run_as_non_root is None else own.run_as_non_root
    chosen = _first(own.run_as_user, shared.run_as_user)
    if not not_root:
        return
    where = f'(pod: "{pod.name}_{pod.namespace}({pod.uid})", container: {container.name})'
    if chosen is not None:
        if chosen == 0:
            raise ContainerConfigError(f"container's runAsUser breaks non-root policy {where}")
    elif user_name:
        raise ContainerConfigError(
            f"container has runAsNonRoot and image has non-numeric user ({user_name}), cannot verify user is "
            f"non-root {where}"
        )
    elif not user:
        raise ContainerConfigError(f"container has runAsNonRoot and image will run as root {where}")


def _first(own: int | None, shared: int | None) -> int | None:
    return shared if own is None else own


def _groups(shared: PodSecurityContext) -> tuple[int, ...]:
    """Only the listed groups, as with supplementalGroupsPolicy Strict.

    Merge would add the user's groups in the image's /etc/group. Here its entries are those of this machine,
    and a container could get the groups of its services.
    """
    fs_group = () if shared.fs_group is None else (shared.fs_group,)
    return tuple(dict.fromkeys((*shared.supplemental_groups, *fs_group)))


def resolve_capabilities(requested: Capabilities | None) -> tuple[str, ...] | None:
    """The resulting capabilities, in the kernel's order; None if nothing is requested.

    Raises ContainerCreateError.
    """
    if requested is None or not (requested.add or requested.drop):
        return None
    add, drop = _names(requested.add, "add"), _names(requested.drop, "drop")
    result = set(CAPABILITIES) if "CAP_ALL" in add else set(DEFAULT_CAPABILITIES)
    if "CAP_ALL" in drop:
        result = set()
    result = (result | add) - drop
    return tuple(name for name in CAPABILITIES if name in result)


def _names(given: Iterable[str], where: str) -> set[str]:
    names = {f"CAP_{name.upper().removeprefix('CAP_')}" for name in given}
    if unknown := sorted(names.difference(CAPABILITIES, ("CAP_ALL",))):
        raise ContainerCreateError(
            f'unknown capability "{unknown[0]}" in securityContext.capabilities.{where}'
        )
    return names


def _seccomp(own: SecurityContext, shared: PodSecurityContext, *, seccomp_default: bool) -> SeccompProfile:
    if own.privileged:
        return SeccompProfile(_UNCONFINED)
    profile = own.seccomp_profile or shared.seccomp_profile
    if profile is None:
        return SeccompProfile("RuntimeDefault" if seccomp_default else _UNCONFINED)
    if profile.type not in ("RuntimeDefault", "Localhost", _UNCONFINED):
        raise ContainerConfigError(f'unknown seccompProfile type "{profile.type}"')
    if profile.type == "Localhost":
        file = profile.localhost_profile
        if not file:
            raise ContainerConfigError("localhostProfile must be set if seccompProfile type is Localhost.")
        if file.startswith("/") or ".." in file.split("/"):
            raise ContainerConfigError(f'localhostProfile "{file}" must be a relative path without ".."')
    return profile


def _proc_mount(requested: str | None) -> ProcMount:
    match requested:
        case None | "Default":
            return "Default"
        case "Unmasked":
            return "Unmasked"
        case other:
            raise ContainerConfigError(f'unknown procMount "{other}"')
