"""Make the CRI configuration of a container from its spec. Pure."""

from __future__ import annotations

import os.path
from collections.abc import Mapping

from volplane.node.containers.base import CgroupLimits, ContainerSpec, Mount, Propagation
from volplane.node.containers.cri import labels, v1

# Paths of /proc and /sys that a container with procMount Default does not see, or cannot write.
MASKED_PATHS = (
    "/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
    "/sys/devices/virtual/powercap",
)  # fmt: skip
READONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

_PROPAGATIONS: Mapping[Propagation, v1.MountPropagation] = {
    "private": v1.PROPAGATION_PRIVATE,
    "rslave": v1.PROPAGATION_HOST_TO_CONTAINER,
    "rshared": v1.PROPAGATION_BIDIRECTIONAL,
}


def make_container_config(
    spec: ContainerSpec, *, root: str, log_directory: str, target: str = "", cgroup_v2: bool = False
) -> v1.ContainerConfig:
    """`root`: the node's directory; `target`: the runtime's id of the container `spec.target`."""
    return v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name=spec.name, attempt=spec.attempt),
        image=v1.ImageSpec(image=spec.image_ref, user_specified_image=spec.image),
        command=spec.command,
        args=spec.args,
        working_dir=spec.workdir,
        envs=[v1.KeyValue(key=key, value=value) for key, value in spec.env.items()],
        mounts=[_mount(mount) for mount in spec.mounts],
        devices=[
            v1.Device(host_path=d.source, container_path=d.target, permissions=d.permissions)
            for d in spec.devices
        ],
        labels=labels.container_labels(spec, root),
        annotations={
            labels.RESTART_COUNT: str(spec.attempt),
            **({labels.TERMINATION_MESSAGE_PATH: spec.message_path} if spec.message_path else {}),
            **({labels.STOP_SIGNAL: spec.stop_signal} if spec.stop_signal else {}),
        },
        log_path=os.path.relpath(spec.log_path, log_directory),
        stdin=spec.stdin,
        stdin_once=spec.stdin_once,
        tty=spec.tty,
        stop_signal=make_signal(spec.stop_signal),
        linux=v1.LinuxContainerConfig(
            resources=make_resources(spec.limits, cgroup_v2=cgroup_v2),
            security_context=_security_context(spec, target),
        ),
    )


def _mount(mount: Mount) -> v1.Mount:
    if mount.image:
        return v1.Mount(
            container_path=mount.target,
            image=v1.ImageSpec(image=mount.image, user_specified_image=mount.image_name),
            image_sub_path=mount.subpath,
            readonly=True,
            propagation=_PROPAGATIONS[mount.propagation],
            recursive_read_only=mount.recursive,
        )
    return v1.Mount(
        container_path=mount.target,
        host_path=mount.source,
        readonly=mount.readonly,
        propagation=_PROPAGATIONS[mount.propagation],
        recursive_read_only=mount.recursive,
    )


def make_signal(name: str) -> v1.Signal:
    """The signal of a name such as SIGRTMIN+1; for "" and unknown names that of the image."""
    known = name.replace("+", "PLUS").replace("-", "MINUS")
    if known not in v1.Signal.DESCRIPTOR.values_by_name:
        return v1.RUNTIME_DEFAULT
    found: v1.Signal = getattr(v1, known)
    return found


def make_resources(limits: CgroupLimits, *, cgroup_v2: bool = False) -> v1.LinuxContainerResources:
    return v1.LinuxContainerResources(
        cpu_shares=limits.cpu_shares,
        cpu_quota=limits.cpu_quota,
        cpu_period=limits.cpu_period,
        memory_limit_in_bytes=limits.memory,
        oom_score_adj=limits.oom_score_adj,
        # A container that is out of memory ends as a whole, as with upstream's kubelet.
        unified={"memory.oom.group": "1"} if cgroup_v2 else {},
    )


def _security_context(spec: ContainerSpec, target: str) -> v1.LinuxContainerSecurityContext:
    open_proc = spec.privileged or spec.proc_mount == "Unmasked"
    return v1.LinuxContainerSecurityContext(
        capabilities=v1.Capability(
            add_capabilities=[_plain(name) for name in spec.added_capabilities],
            drop_capabilities=[_plain(name) for name in spec.dropped_capabilities],
        ),
        privileged=spec.privileged,
        namespace_options=_namespaces(spec, target),
        run_as_user=v1.Int64Value(value=spec.user) if spec.user is not None else None,
        run_as_username=spec.user_name if spec.user is None else "",
        run_as_group=v1.Int64Value(value=spec.group) if spec.group is not None else None,
        readonly_rootfs=spec.readonly_root,
        supplemental_groups=spec.groups,
        no_new_privs=spec.no_new_privs,
        masked_paths=() if open_proc else MASKED_PATHS,
        readonly_paths=() if open_proc else READONLY_PATHS,
        seccomp=make_seccomp(spec.seccomp_profile),
    )


def _plain(capability: str) -> str:
    return capability.removeprefix("CAP_")


def make_seccomp(profile: str) -> v1.SecurityProfile:
    kinds = v1.SecurityProfile
    if profile == "RuntimeDefault":
        return kinds(profile_type=kinds.RuntimeDefault)
    if profile:
        return kinds(profile_type=kinds.Localhost, localhost_ref=profile)
    return kinds(profile_type=kinds.Unconfined)


def _namespaces(spec: ContainerSpec, target: str) -> v1.NamespaceOption:
    pid = v1.POD if spec.share_processes else v1.CONTAINER
    if spec.host_pid:
        pid = v1.NODE
    elif target:
        pid = v1.TARGET
    return v1.NamespaceOption(
        network=v1.NODE if spec.host_network else v1.POD,
        pid=pid,
        ipc=v1.NODE if spec.host_ipc else v1.POD,
        target_id=target,
    )
