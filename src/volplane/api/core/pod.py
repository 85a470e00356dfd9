"""Pod, PodTemplate and ReplicationController."""

from collections.abc import Mapping
from typing import Annotated

from volplane.api.core.container import (
    AppArmorProfile,
    Container,
    EphemeralContainer,
    ResourceRequirements,
    SeccompProfile,
    SELinuxOptions,
    WindowsSecurityContextOptions,
)
from volplane.api.core.refs import LocalObjectReference, ObjectReference
from volplane.api.core.selectors import Affinity, Toleration, TopologySpreadConstraint
from volplane.api.core.status import ContainerStatus
from volplane.api.core.volume import Volume
from volplane.api.meta import ObjectMeta, Resource
from volplane.api.object import Object, Quantity, Time, field, merge, no_omitempty


class Sysctl(Object):
    name: str = no_omitempty(factory=str)
    value: str = no_omitempty(factory=str)


class PodSecurityContext(Object):
    se_linux_options: SELinuxOptions | None = None
    windows_options: WindowsSecurityContextOptions | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    supplemental_groups: tuple[int, ...] = ()
    supplemental_groups_policy: str | None = None
    fs_group: int | None = None
    sysctls: tuple[Sysctl, ...] = ()
    fs_group_change_policy: str | None = None
    seccomp_profile: SeccompProfile | None = None
    app_armor_profile: AppArmorProfile | None = None
    se_linux_change_policy: str | None = None


class HostAlias(Object):
    ip: str = no_omitempty(factory=str)
    hostnames: tuple[str, ...] = ()


class PodDNSConfigOption(Object):
    name: str = ""
    value: str | None = None


class PodDNSConfig(Object):
    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[PodDNSConfigOption, ...] = ()


class PodReadinessGate(Object):
    condition_type: str = no_omitempty(factory=str)


class PodOS(Object):
    name: str = no_omitempty(factory=str)


class PodSchedulingGate(Object):
    name: str = no_omitempty(factory=str)


class PodResourceClaim(Object):
    name: str = no_omitempty(factory=str)
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class WorkloadReference(Object):
    name: str = no_omitempty(factory=str)
    pod_group: str = no_omitempty(factory=str)
    pod_group_replica_key: str = ""


class PodSpec(Object):
    volumes: Annotated[tuple[Volume, ...], merge("name", retain=True)] = ()
    init_containers: Annotated[tuple[Container, ...], merge("name")] = ()
    containers: Annotated[tuple[Container, ...], merge("name")] = no_omitempty(factory=tuple)
    ephemeral_containers: Annotated[tuple[EphemeralContainer, ...], merge("name")] = ()
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    dns_policy: str = ""
    node_selector: Mapping[str, str] = {}
    service_account_name: str = ""
    service_account: str = ""
    automount_service_account_token: bool | None = None
    node_name: str = ""
    host_network: bool = False
    host_pid: bool = field(name="hostPID", default=False)
    host_ipc: bool = field(name="hostIPC", default=False)
    share_process_namespace: bool | None = None
    security_context: PodSecurityContext | None = None
    image_pull_secrets: Annotated[tuple[LocalObjectReference, ...], merge("name")] = ()
    hostname: str = ""
    subdomain: str = ""
    affinity: Affinity | None = None
    scheduler_name: str = ""
    tolerations: tuple[Toleration, ...] = ()
    host_aliases: Annotated[tuple[HostAlias, ...], merge("ip")] = ()
    priority_class_name: str = ""
    priority: int | None = None
    dns_config: PodDNSConfig | None = None
    readiness_gates: tuple[PodReadinessGate, ...] = ()
    runtime_class_name: str | None = None
    enable_service_links: bool | None = None
    preemption_policy: str | None = None
    overhead: Mapping[str, Quantity] = {}
    topology_spread_constraints: Annotated[
        tuple[TopologySpreadConstraint, ...], merge("topologyKey", keys=("topologyKey", "whenUnsatisfiable"))
    ] = ()
    set_hostname_as_fqdn: bool | None = field(name="setHostnameAsFQDN", default=None)
    os: PodOS | None = None
    host_users: bool | None = None
    scheduling_gates: Annotated[tuple[PodSchedulingGate, ...], merge("name")] = ()
    resource_claims: Annotated[tuple[PodResourceClaim, ...], merge("name", retain=True)] = ()
    resources: ResourceRequirements | None = None
    hostname_override: str | None = None
    workload_ref: WorkloadReference | None = None


class PodCondition(Object):
    type: str = no_omitempty(factory=str)
    observed_generation: int = 0
    status: str = no_omitempty(factory=str)
    last_probe_time: Time = ""
    last_transition_time: Time = ""
    reason: str = ""
    message: str = ""


class HostIP(Object):
    ip: str = no_omitempty(factory=str)


class PodIP(Object):
    ip: str = no_omitempty(factory=str)


class PodResourceClaimStatus(Object):
    name: str = no_omitempty(factory=str)
    resource_claim_name: str | None = None


class ContainerExtendedResourceRequest(Object):
    container_name: str = no_omitempty(factory=str)
    resource_name: str = no_omitempty(factory=str)
    request_name: str = no_omitempty(factory=str)


class PodExtendedResourceClaimStatus(Object):
    request_mappings: tuple[ContainerExtendedResourceRequest, ...] = no_omitempty(factory=tuple)
    resource_claim_name: str = no_omitempty(factory=str)


class PodStatus(Object):
    observed_generation: int = 0
    phase: str = ""
    conditions: Annotated[tuple[PodCondition, ...], merge("type")] = ()
    message: str = ""
    reason: str = ""
    nominated_node_name: str = ""
    host_ip: str = field(name="hostIP", default="")
    host_ips: Annotated[tuple[HostIP, ...], merge("ip", applied="atomic")] = field(name="hostIPs", default=())
    pod_ip: str = field(name="podIP", default="")
    pod_ips: Annotated[tuple[PodIP, ...], merge("ip")] = field(name="podIPs", default=())
    start_time: Time | None = None
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    qos_class: str = ""
    ephemeral_container_statuses: tuple[ContainerStatus, ...] = ()
    resize: str = ""
    resource_claim_statuses: Annotated[tuple[PodResourceClaimStatus, ...], merge("name", retain=True)] = ()
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None
    allocated_resources: Mapping[str, Quantity] = {}
    resources: ResourceRequirements | None = None


class Pod(Resource):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class PodTemplateSpec(Object):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class PodTemplate(Resource):
    template: PodTemplateSpec = PodTemplateSpec()


class ReplicationControllerSpec(Object):
    replicas: int | None = None
    min_ready_seconds: int = 0
    selector: Mapping[str, str] = {}
    template: PodTemplateSpec | None = None


class ReplicationControllerCondition(Object):
    type: str = no_omitempty(factory=str)
    status: str = no_omitempty(factory=str)
    last_transition_time: Time = ""
    reason: str = ""
    message: str = ""


class ReplicationControllerStatus(Object):
    replicas: int = no_omitempty(factory=int)
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    observed_generation: int = 0
    conditions: Annotated[tuple[ReplicationControllerCondition, ...], merge("type")] = ()


class ReplicationController(Resource):
    spec: ReplicationControllerSpec = ReplicationControllerSpec()
    status: ReplicationControllerStatus = ReplicationControllerStatus()


class Binding(Resource):
    target: ObjectReference = ObjectReference()
