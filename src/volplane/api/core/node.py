"""Node."""

from collections.abc import Mapping
from typing import Annotated

from volplane.api.core.selectors import Taint
from volplane.api.meta import Resource
from volplane.api.object import Object, Quantity, Time, field, merge, no_omitempty


class ConfigMapNodeConfigSource(Object):
    namespace: str = no_omitempty(factory=str)
    name: str = no_omitempty(factory=str)
    uid: str = ""
    resource_version: str = ""
    kubelet_config_key: str = no_omitempty(factory=str)


class NodeConfigSource(Object):
    config_map: ConfigMapNodeConfigSource | None = None


class NodeSpec(Object):
    pod_cidr: str = field(name="podCIDR", default="")
    pod_cidrs: Annotated[tuple[str, ...], merge()] = field(name="podCIDRs", default=())
    provider_id: str = field(name="providerID", default="")
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    config_source: NodeConfigSource | None = None
    external_id: str = field(name="externalID", default="")


class NodeCondition(Object):
    type: str = no_omitempty(factory=str)
    status: str = no_omitempty(factory=str)
    last_heartbeat_time: Time = ""
    last_transition_time: Time = ""
    reason: str = ""
    message: str = ""


class NodeAddress(Object):
    type: str = no_omitempty(factory=str)
    address: str = no_omitempty(factory=str)


class DaemonEndpoint(Object):
    port: int = no_omitempty(factory=int, name="Port")


class NodeDaemonEndpoints(Object):
    kubelet_endpoint: DaemonEndpoint = DaemonEndpoint()


class NodeSwapStatus(Object):
    capacity: int | None = None


class NodeSystemInfo(Object):
    machine_id: str = no_omitempty(factory=str, name="machineID")
    system_uuid: str = no_omitempty(factory=str, name="systemUUID")
    boot_id: str = no_omitempty(factory=str, name="bootID")
    kernel_version: str = no_omitempty(factory=str)
    os_image: str = no_omitempty(factory=str)
    container_runtime_version: str = no_omitempty(factory=str)
    kubelet_version: str = no_omitempty(factory=str)
    kube_proxy_version: str = no_omitempty(factory=str)
    operating_system: str = no_omitempty(factory=str)
    architecture: str = no_omitempty(factory=str)
    swap: NodeSwapStatus | None = None


class ContainerImage(Object):
    names: tuple[str, ...] = no_omitempty(factory=tuple)
    size_bytes: int = 0


class AttachedVolume(Object):
    name: str = no_omitempty(factory=str)
    device_path: str = no_omitempty(factory=str)


class NodeConfigStatus(Object):
    assigned: NodeConfigSource | None = None
    active: NodeConfigSource | None = None
    last_known_good: NodeConfigSource | None = None
    error: str = ""


class NodeRuntimeHandlerFeatures(Object):
    recursive_read_only_mounts: bool | None = None
    user_namespaces: bool | None = None


class NodeRuntimeHandler(Object):
    name: str = no_omitempty(factory=str)
    features: NodeRuntimeHandlerFeatures | None = None


class NodeFeatures(Object):
    supplemental_groups_policy: bool | None = None


class NodeStatus(Object):
    capacity: Mapping[str, Quantity] = {}
    allocatable: Mapping[str, Quantity] = {}
    phase: str = ""
    conditions: Annotated[tuple[NodeCondition, ...], merge("type")] = ()
    addresses: Annotated[tuple[NodeAddress, ...], merge("type")] = ()
    daemon_endpoints: NodeDaemonEndpoints = NodeDaemonEndpoints()
    node_info: NodeSystemInfo = NodeSystemInfo()
    images: tuple[ContainerImage, ...] = ()
    volumes_in_use: tuple[str, ...] = ()
    volumes_attached: tuple[AttachedVolume, ...] = ()
    config: NodeConfigStatus | None = None
    runtime_handlers: tuple[NodeRuntimeHandler, ...] = ()
    features: NodeFeatures | None = None
    declared_features: tuple[str, ...] = ()


class Node(Resource):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()
