"""Build the spec that a runtime starts from a pod's container: environment, mounts, user, own files.

Volumes are below the node's own root on this machine, whatever the manifest calls it. A driver's container
that mounts `/var/lib/kubelet` gets that root there.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct, structs

from volplane.api.core import (
    Capabilities,
    Container,
    HostIP,
    Pod,
    PodIP,
    SecurityContext,
    VolumeDevice,
    VolumeMount,
)
from volplane.base.files import atomic_write
from volplane.host import DEVICES
from volplane.host.device_directory import list_mounted
from volplane.node import instance_metadata
from volplane.node.containers import seccomp
from volplane.node.containers.base import ContainerDevice, ContainerSpec, Mount, Propagation
from volplane.node.containers.cri.images import LocalImage
from volplane.node.containers.launcher.log import list_rotated
from volplane.node.image_overrides import ImageOverride, ImageOverrides
from volplane.node.network import NetworkAttachment
from volplane.node.network.pod_endpoints import PodEndpoint
from volplane.node.network.resolv_conf import (
    RESOLV_CONF,
    ClusterDns,
    ResolvConf,
    make_resolv_conf,
    read_resolv_conf,
)
from volplane.node.pods.cgroup_limits import make_limits
from volplane.node.pods.env_expansion import UnknownVariable, expand, expand_strictly
from volplane.node.pods.environment import ContainerConfigError, ContainerCreateError, Environment
from volplane.node.pods.runtimes import find_own_command
from volplane.node.pods.security_context import (
    ContainerSecurity,
    check_image_user,
    check_target,
    check_user,
    resolve_security,
)
from volplane.node.subpaths import SubPathError, bind_subpath
from volplane.node.volume_manager.manager import MountedVolume
from volplane.rules.sysctls import namespace_of
from volplane.volumes.base import NodeContext

PAUSE_COMMAND = ("/bin/sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done")
LONGEST_MESSAGE = 4096
HOSTS = "/etc/hosts"
# Containers write to these files, and some see their directory: follow no link, and do not block on a FIFO.
_NO_FOLLOW = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_PROPAGATIONS: Mapping[str, Propagation] = {
    "": "private",
    "None": "private",
    "HostToContainer": "rslave",
    "Bidirectional": "rshared",
}


class ContainerSpecBuilder(Struct, frozen=True):
    """Builds the specs of all containers of a node."""

    site: NodeContext
    cluster: Mapping[str, str]  # environment variables with the API server's address
    programs: ImageOverrides = ImageOverrides()  # programs of this machine that replace images
    host_ip: str = ""
    seccomp_default: bool = False  # RuntimeDefault for containers that name no seccomp profile
    log_max_size: int = 0  # bytes of one log file; 0: no limit
    log_max_files: int = 0
    images_have_resolver: bool = False  # the runtime writes the resolver configuration
    metadata: PodEndpoint | None = None  # instance metadata for pods that do not find it at its address

    async def build(
        self,
        pod: Pod,
        container: Container,
        volumes: Mapping[str, MountedVolume],
        attachment: NetworkAttachment,
        *,
        id: str,
        attempt: int,
        builtin: bool,
        image: LocalImage | None = None,
        volume_images: Mapping[str, LocalImage] = {},
        recursive_readonly: bool = True,
    ) -> ContainerSpec:
        """`image`: that of the container, and `volume_images`: those of its image volumes, for a runtime with
        images; `recursive_readonly`: what the runtime can do. Raises ContainerConfigError.
        """
        site = self.site
        environment = Environment(
            site.client, self._with_addresses(pod, attachment), container, site.allocatable()
        )
        variables = await environment.build({**self.cluster, **self._metadata_variables(attachment, image)})
        if builtin:  # it connects from the node's network, so the pod must not choose the address
            variables = {**variables, **self.cluster}
        command = tuple(expand(part, variables) for part in container.command)
        args = tuple(expand(part, variables) for part in container.args)
        program = None if builtin else self.programs.get(container.image)
        if program is not None and program.is_own_image:
            if image is None:
                raise ContainerConfigError(
                    f'image "{container.image}" runs itself (--image without a command), which needs a node '
                    "with a container runtime"
                )
            program = None
        if program is not None and image is not None:
            raise ContainerConfigError(
                f'image "{container.image}" is replaced by the program {program.argv[0]} of this machine, '
                "which cannot run on a node with a container runtime: use a node without one"
            )
        if program is not None:
            command = program.command(command, variables)
        elif not command and not builtin and image is None:
            command, args = (args, ()) if find_own_command(container) else (PAUSE_COMMAND, ())
        recursive_readonly = recursive_readonly or builtin  # which no runtime runs
        if not recursive_readonly:
            _refuse_recursive_readonly(container)
        mounts = [
            _mount_image(mount, volume_images[mount.name], pod, variables)
            if mount.name in volume_images
            else await self._mount(pod, container, index, mount, volumes, variables, builtin=builtin)
            for index, mount in enumerate(container.volume_mounts)
        ]
        if not recursive_readonly:
            mounts = [structs.replace(mount, recursive=False) for mount in mounts]
        if not builtin:
            mounts += await self._device_mounts(mounts)
            mounts += self._own_files(pod, container, attachment, attempt)
        if program is not None:
            mounts += _program_mounts(program, mounts)
        security = resolve_security(pod, container, seccomp_default=self.seccomp_default)
        spec = ContainerSpec(
            id=id,
            pod_uid=pod.uid,
            pod_name=pod.name,
            namespace=pod.namespace,
            service_account=pod.spec.service_account_name or "default",
            name=container.name,
            image=container.image,
            command=command,
            args=args,
            program=program.program(variables) if program is not None else (),
            env={**program.environment(variables), **variables} if program else variables,
            workdir=container.working_dir or (program.directory if program else ""),
            hostname=hostname(pod),
            mounts=tuple(mounts),
            devices=tuple(_device(container, d, volumes) for d in container.volume_devices),
            user=security.user,
            group=security.group,
            groups=security.groups,
            privileged=security.privileged,
            attempt=attempt,
            log_path=site.paths.real(
                site.paths.log_file(pod.namespace, pod.name, pod.uid, container.name, attempt)
            ),
            log_max_size=self.log_max_size,
            log_max_files=self.log_max_files,
            host_network=pod.spec.host_network,
            host_pid=pod.spec.host_pid,
            host_ipc=pod.spec.host_ipc,
            stdin=container.stdin,
            stdin_once=container.stdin_once,
            tty=container.tty,
            network="" if builtin else attachment.namespace,
            stop_signal=stop_signal(container) or "SIGTERM",
        )
        if image is not None:
            return self._confine_image(spec, pod, container, security, image)
        # Built-in images are coroutines of this process: limits of a process do not apply.
        return spec if builtin else await self._confine(spec, pod, container, security)

    def _metadata_variables(self, attachment: NetworkAttachment, image: LocalImage | None) -> dict[str, str]:
        """How SDKs of AWS find the instance metadata where the node cannot offer it at its usual address: in
        the machine's network, and in one that a runtime makes.
        """
        if self.metadata is None or (attachment.namespace and image is None):
            return {}
        return {instance_metadata.VARIABLE: f"http://{self.metadata.address}:{self.metadata.port}"}

    async def _confine(
        self, spec: ContainerSpec, pod: Pod, container: Container, security: ContainerSecurity
    ) -> ContainerSpec:
        check_user(pod, container)
        check_target(pod, container)
        for name in security.sysctls:
            if namespace_of(name) == "net" and not spec.network:
                raise ContainerCreateError(
                    f'sysctl "{name}" cannot be set: the pod shares the network of its node'
                )
        if not spec.privileged and "CAP_MKNOD" in security.effective_capabilities:
            _refuse_propagation(container)
        return structs.replace(
            spec,
            capabilities=security.capabilities,
            no_new_privs=security.no_new_privs,
            readonly_root=security.readonly_root,
            seccomp=await self._seccomp(security),
            sysctls=security.sysctls,
            proc_mount=security.proc_mount,
        )

    def _confine_image(
        self,
        spec: ContainerSpec,
        pod: Pod,
        container: Container,
        security: ContainerSecurity,
        image: LocalImage,
    ) -> ContainerSpec:
        check_image_user(pod, container, image.user, image.user_name)
        own = (container.security_context or SecurityContext()).capabilities or Capabilities()
        profile = str(security.seccomp) if security.seccomp == "RuntimeDefault" else ""
        if security.seccomp == "Localhost":
            profile = self.site.paths.real(f"{self.site.paths.seccomp}/{security.seccomp_file}")
        return structs.replace(
            spec,
            image_ref=image.id,
            stop_signal=stop_signal(container) or "",
            user=image.user if security.user is None else security.user,
            user_name=image.user_name,
            limits=make_limits(pod, container, self.site.allocatable()),
            added_capabilities=own.add,
            dropped_capabilities=own.drop,
            no_new_privs=security.no_new_privs,
            readonly_root=security.readonly_root,
            seccomp_profile=profile,
            proc_mount=security.proc_mount,
            share_processes=bool(pod.spec.share_process_namespace),
            target=_find_target(pod, container),
            message_path=container.termination_message_path,
        )

    async def _seccomp(self, security: ContainerSecurity) -> str:
        """The compiled filter; "" for none."""
        host, capabilities = self.site.host, security.effective_capabilities
        try:
            match security.seccomp:
                case "RuntimeDefault":
                    return await host.call(seccomp.compile_default, capabilities)
                case "Localhost":
                    path = self.site.paths.real(f"{self.site.paths.seccomp}/{security.seccomp_file}")
                    return await host.call(seccomp.compile_file, path, capabilities)
                case _:
                    return ""
        except seccomp.SeccompCompileError as error:
            raise ContainerCreateError(str(error)) from error

    def _with_addresses(self, pod: Pod, attachment: NetworkAttachment) -> Pod:
        """The pod with its addresses in its status, for fieldRefs of its first container."""
        here = structs.replace(
            pod.status,
            pod_ip=attachment.address,
            pod_ips=(PodIP(attachment.address),),
            host_ip=self.host_ip,
            host_ips=(HostIP(self.host_ip),),
        )
        return structs.replace(pod, status=here)

    async def _mount(
        self,
        pod: Pod,
        container: Container,
        index: int,
        mount: VolumeMount,
        volumes: Mapping[str, MountedVolume],
        variables: Mapping[str, str],
        *,
        builtin: bool,
    ) -> Mount:
        volume = volumes.get(mount.name)
        if volume is None:
            raise ContainerConfigError(
                f'cannot find volume "{mount.name}" to mount into container "{container.name}"'
            )
        if not volume.path:
            raise ContainerConfigError(
                f'container "{container.name}" cannot mount the image volume "{mount.name}": '
                "its own image is built into the node"
            )
        propagation = _PROPAGATIONS[mount.mount_propagation or ""]
        if propagation == "rshared" and not _is_privileged(container):
            raise ContainerConfigError(
                "Bidirectional mount propagation is available only to privileged containers"
            )
        root = volume.path
        if root == DEVICES and not builtin:
            await self.site.devices.fill()
            root = self.site.devices.find(root)
        source = root
        if volume.runtime_creates_path:
            await self.site.host.call(_create_host_path, source)
        subpath = _subpath(mount, variables)
        if subpath:
            try:
                source = await bind_subpath(
                    self.site,
                    pod=pod.uid,
                    volume=volume.name,
                    container=container.name,
                    index=index,
                    root=root,
                    subpath=subpath,
                    mount=mount.name,
                )
            except SubPathError as error:
                raise ContainerConfigError(str(error)) from error
        readonly = mount.read_only or volume.readonly
        recursive = mount.recursive_read_only in ("Enabled", "IfPossible") and readonly
        return Mount(source, mount.mount_path, readonly, propagation, recursive)

    async def _device_mounts(self, mounts: Sequence[Mount]) -> list[Mount]:
        """What is mounted below the machine's /dev, for a container that has the node's /dev."""
        devices = self.site.paths.dev
        targets = [mount.target.rstrip("/") for mount in mounts if mount.source == devices != DEVICES]
        if not targets:
            return []
        self.site.devices.follow()
        names = await self.site.host.call(list_mounted, devices)
        found = (Mount(f"{DEVICES}/{name}", f"{target}/{name}") for target in targets for name in names)
        return without_taken(found, mounts)

    async def write_container_files(
        self, pod: Pod, container: Container, *, attachment: NetworkAttachment, attempt: int, builtin: bool
    ) -> None:
        """Create the container's own files. They need no volume, so this runs while volumes are mounted."""
        if not builtin:
            files = self._own_files(pod, container, attachment, attempt)
            await self.site.host.call(_make_files, files, pod, attachment)

    def _own_files(
        self, pod: Pod, container: Container, attachment: NetworkAttachment, attempt: int
    ) -> list[Mount]:
        """The hosts file, the resolver configuration and the termination message file."""
        paths, mounts = self.site.paths, []
        taken = {mount.mount_path for mount in container.volume_mounts}
        if not pod.spec.host_network and HOSTS not in taken:
            mounts.append(Mount(paths.real(paths.hosts_file(pod.uid)), HOSTS))
        if RESOLV_CONF not in taken and self._has_own_resolver(pod, attachment):
            mounts.append(Mount(paths.real(paths.resolv_conf_file(pod.uid)), RESOLV_CONF))
        message_path = container.termination_message_path
        if message_path and message_path not in taken:
            mounts.append(
                Mount(self.termination_message_file(pod.uid, container.name, attempt), message_path)
            )
        return mounts

    def _has_own_resolver(self, pod: Pod, attachment: NetworkAttachment) -> bool:
        if self.images_have_resolver:
            return False
        return make_resolv_conf(pod, ResolvConf(), attachment.dns) is not None

    def termination_message_file(self, pod: str, container: str, attempt: int) -> str:
        return self.site.paths.real(f"{self.site.paths.container(pod, container)}/{attempt}")

    async def remove_attempt_files(self, pod: Pod, container: str, attempt: int) -> None:
        """Remove the log and termination message of an attempt that can no longer be requested."""
        paths = self.site.paths
        log = paths.real(paths.log_file(pod.namespace, pod.name, pod.uid, container, attempt))
        message = self.termination_message_file(pod.uid, container, attempt)
        await self.site.host.call(_remove_attempt, log, message)

    async def read_termination_message(self, pod: Pod, container: Container, attempt: int) -> str:
        """The content of the container's terminationMessagePath."""
        if not container.termination_message_path:
            return ""
        return await self.site.host.call(
            _read_message, self.termination_message_file(pod.uid, container.name, attempt)
        )


def _mount_image(mount: VolumeMount, image: LocalImage, pod: Pod, variables: Mapping[str, str]) -> Mount:
    name = next(v.image.reference for v in pod.spec.volumes if v.name == mount.name and v.image is not None)
    return Mount(
        "",
        mount.mount_path,
        readonly=True,
        propagation=_PROPAGATIONS[mount.mount_propagation or ""],
        recursive=mount.recursive_read_only in ("Enabled", "IfPossible"),
        image=image.id,
        image_name=name,
        subpath=_subpath(mount, variables),
    )


def _refuse_recursive_readonly(container: Container) -> None:
    """IfPossible is no request. Raises ContainerConfigError, in the kubelet's words."""
    for mount in container.volume_mounts:
        if mount.recursive_read_only == "Enabled":
            raise ContainerConfigError(
                f'volume "{mount.name}" requested recursive read-only mode, but it is not supported by the '
                "runtime"
            )


def _create_host_path(path: str) -> None:
    """A missing hostPath without a type becomes a directory, as with other container runtimes.

    Raises ContainerCreateError.
    """
    if os.path.exists(path):
        return
    try:
        os.makedirs(path, 0o755)
        os.chmod(path, 0o755)  # whatever our umask is
    except OSError as error:
        raise ContainerCreateError(f'failed to mkdir "{path}": {error.strerror}') from error


def _program_mounts(program: ImageOverride, mounts: Sequence[Mount]) -> list[Mount]:
    """Paths of the machine that a program needs."""
    return without_taken((Mount(path, path) for path in program.paths), mounts)


def without_taken(added: Iterable[Mount], mounts: Sequence[Mount]) -> list[Mount]:
    """A volume of the pod at the same path takes precedence, for example its own /dev/shm."""
    taken = {mount.target.rstrip("/") for mount in mounts}
    return [mount for mount in added if mount.target not in taken]


def _device(
    container: Container, device: VolumeDevice, volumes: Mapping[str, MountedVolume]
) -> ContainerDevice:
    volume = volumes.get(device.name)
    if volume is None:
        raise ContainerConfigError(
            f'cannot find volume "{device.name}" to pass into container "{container.name}"'
        )
    return ContainerDevice(volume.path, device.device_path, "r" if volume.readonly else "mrw")


def stop_signal(container: Container) -> str | None:
    return container.lifecycle.stop_signal if container.lifecycle else None


def hostname(pod: Pod) -> str:
    if pod.spec.host_network:
        return os.uname().nodename
    return pod.spec.hostname_override or pod.spec.hostname or pod.name[:63].rstrip("-.")


def _subpath(mount: VolumeMount, variables: Mapping[str, str]) -> str:
    path = mount.sub_path
    if mount.sub_path_expr:
        try:
            path = expand_strictly(mount.sub_path_expr, variables)
        except UnknownVariable as error:
            raise ContainerConfigError(str(error)) from error
    if path.startswith("/") or ".." in path.split("/"):
        raise ContainerConfigError(f"subPath {path!r} must be a relative path without '..'")
    return posixpath.normpath(path) if path else ""


def _refuse_propagation(container: Container) -> None:
    """Mounts that propagate later may contain devices, which the container could use.

    Raises ContainerCreateError.
    """
    for mount in container.volume_mounts:
        if _PROPAGATIONS[mount.mount_propagation or ""] != "private":
            raise ContainerCreateError(
                f'volume mount "{mount.name}" of container "{container.name}" has mountPropagation '
                f"{mount.mount_propagation}, which cannot be combined with capability MKNOD: drop MKNOD, "
                "or make the container privileged"
            )


def _find_target(pod: Pod, container: Container) -> str:
    """The container whose processes an ephemeral container sees."""
    targets = (c.target_container_name for c in pod.spec.ephemeral_containers if c.name == container.name)
    return next(targets, "")


def _is_privileged(container: Container) -> bool:
    return bool(container.security_context and container.security_context.privileged)


def _make_files(files: Sequence[Mount], pod: Pod, attachment: NetworkAttachment) -> None:
    for file in files:
        if file.target == HOSTS:
            _write_hosts(file.source, pod, attachment)
        elif file.target == RESOLV_CONF:
            _write_resolv_conf(file.source, pod, attachment.dns)
        else:
            _make_message_file(file.source)


def _write_hosts(path: str, pod: Pod, attachment: NetworkAttachment) -> None:
    lines = [
        "# Kubernetes-managed hosts file.",
        "127.0.0.1\tlocalhost",
        "::1\tlocalhost ip6-localhost ip6-loopback",
    ]
    lines.append(f"{attachment.address}\t{' '.join(_own_names(pod, attachment.dns))}")
    lines += [f"{alias.ip}\t{' '.join(alias.hostnames)}" for alias in pod.spec.host_aliases]
    _write_once(path, "\n".join(lines) + "\n")


def _own_names(pod: Pod, dns: ClusterDns | None) -> list[str]:
    """The pod's name below its subdomain, if it has one, and its host name."""
    name = hostname(pod)
    if not pod.spec.subdomain or dns is None:
        return [name]
    return [f"{name}.{pod.spec.subdomain}.{pod.namespace}.svc.{dns.domain}", name]


def _write_resolv_conf(path: str, pod: Pod, dns: ClusterDns | None) -> None:
    made = make_resolv_conf(pod, read_resolv_conf(), dns)
    _write_once(path, made.render() if made is not None else "")


def _write_once(path: str, text: str) -> None:
    """Running containers have the file mounted: it is never replaced."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.exists(path):
        atomic_write(path, text.encode(), 0o644)


def _make_message_file(path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | _NO_FOLLOW, 0o666)
    try:
        os.fchmod(descriptor, 0o666)
    finally:
        os.close(descriptor)


def _remove_attempt(log: str, message: str) -> None:
    for path in (message, log, *list_rotated(log)):
        with suppress(OSError):
            os.unlink(path)


def _read_message(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | _NO_FOLLOW)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return os.read(descriptor, LONGEST_MESSAGE).decode(errors="replace")
    finally:
        os.close(descriptor)
