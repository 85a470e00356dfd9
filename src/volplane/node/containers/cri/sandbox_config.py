"""Make the CRI configuration of a pod's sandbox. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from volplane.api.core import Pod, PodSecurityContext
from volplane.node.containers.cri import labels, v1
from volplane.node.network.resolv_conf import ClusterDns, ResolvConf, make_resolv_conf
from volplane.rules import sysctls

CGROUP_ROOT = "volplane"
_PROTOCOLS = {"": v1.TCP, "TCP": v1.TCP, "UDP": v1.UDP, "SCTP": v1.SCTP}


class SandboxInputs(Struct, frozen=True):
    """What a sandbox's configuration is made from, besides the pod."""

    root: str  # the node's directory on this machine
    hostname: str
    log_directory: str
    systemd_cgroups: bool = False  # the runtime's cgroup driver
    resolv_conf: ResolvConf = ResolvConf()
    cluster_dns: ClusterDns | None = None


def make_sandbox_config(pod: Pod, attempt: int, inputs: SandboxInputs) -> v1.PodSandboxConfig:
    spec = pod.spec
    context = spec.security_context or PodSecurityContext()
    return v1.PodSandboxConfig(
        metadata=v1.PodSandboxMetadata(
            name=pod.name,
            uid=labels.sandbox_uid(pod, inputs.root),
            namespace=pod.namespace,
            attempt=attempt,
        ),
        hostname="" if spec.host_network else inputs.hostname,
        log_directory=inputs.log_directory,
        dns_config=make_dns_config(pod, inputs.resolv_conf, inputs.cluster_dns),
        port_mappings=list(_port_mappings(pod)),
        labels=labels.pod_labels(pod, inputs.root),
        annotations=pod.metadata.annotations,
        linux=v1.LinuxPodSandboxConfig(
            cgroup_parent=cgroup_parent(pod.uid, inputs.root, systemd=inputs.systemd_cgroups),
            security_context=_security_context(pod, context),
            sysctls={sysctls.plain(each.name): each.value for each in context.sysctls},
        ),
    )


def cgroup_parent(uid: str, root: str, *, systemd: bool) -> str:
    """The cgroup of all containers of a pod."""
    node = labels.node_digest(root)
    if systemd:  # a dash in the name of a slice means a parent
        return f"{CGROUP_ROOT}-{node}-pod{uid.replace('-', '_')}.slice"
    return f"/{CGROUP_ROOT}/{node}/pod{uid}"


def _port_mappings(pod: Pod) -> Iterator[v1.PortMapping]:
    if pod.spec.host_network:
        return
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        for port in container.ports:
            if port.host_port:
                yield v1.PortMapping(
                    protocol=_PROTOCOLS[port.protocol or ""],
                    container_port=port.container_port,
                    host_port=port.host_port,
                    host_ip=port.host_ip or "",
                )


def _security_context(pod: Pod, context: PodSecurityContext) -> v1.LinuxSandboxSecurityContext:
    spec = pod.spec
    containers = (*spec.init_containers, *spec.containers)
    privileged = any(c.security_context and c.security_context.privileged for c in containers)
    groups = (*context.supplemental_groups, *(() if context.fs_group is None else (context.fs_group,)))
    pid = v1.POD if spec.share_process_namespace else v1.CONTAINER
    user, group = context.run_as_user, context.run_as_group
    return v1.LinuxSandboxSecurityContext(
        namespace_options=v1.NamespaceOption(
            network=v1.NODE if spec.host_network else v1.POD,
            pid=v1.NODE if spec.host_pid else pid,
            ipc=v1.NODE if spec.host_ipc else v1.POD,
        ),
        run_as_user=v1.Int64Value(value=user) if user is not None else None,
        run_as_group=v1.Int64Value(value=group) if group is not None and user is not None else None,
        supplemental_groups=groups,
        privileged=privileged,
        seccomp=v1.SecurityProfile(profile_type=v1.SecurityProfile.RuntimeDefault),
    )


def make_dns_config(pod: Pod, machine: ResolvConf, cluster: ClusterDns | None = None) -> v1.DNSConfig | None:
    """The pod's resolver configuration; None where the runtime copies the machine's."""
    made = make_resolv_conf(pod, machine, cluster)
    if made is None:
        return None
    return v1.DNSConfig(servers=made.servers, searches=made.searches, options=made.options)
