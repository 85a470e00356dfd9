"""Node."""

from collections.abc import Mapping
from typing import Annotated

from volplane.api.core.selectors import Taint
from volplane.api.meta import Resource
from volplane.api.object import Object, Quantity, Time, field, kept, merge


class ConfigMapNodeConfigSource(Object):
    namespace: str = kept(factory=str)
    name: str = kept(factory=str)
    uid: str = ""
    resource_version: str = ""
    kubelet_config_key: str = kept(factory=str)


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
    type: str = kept(factory=str)
    status: str = kept(factory=str)
    last_heartbeat_time: Time = ""
    last_transition_time: Time = ""
    reason: str = ""
    message: str = ""


class NodeAddress(Object):
    type: str = kept(factory=str)
    address: str = kept(factory=str)


class DaemonEndpoint(Object):
    port: int = kept(factory=int, name="Port")


class NodeDaemonEndpoints(Object):
    kubelet_endpoint: DaemonEndpoint = DaemonEndpoint()


class NodeSwapStatus(Object):
    capacity: int | None = None


class NodeSystemInfo(Object):
    machine_id: str = kept(factory=str, name="machineID")
    system_uuid: str = kept(factory=str, name="systemUUID")
    boot_id: str = kept(factory=str, name="bootID")
    kernel_version: str = kept(factory=str)
    os_image: str = kept(factory=str)
    container_runtime_version: str = kept(factory=str)
    kubelet_version: str = kept(factory=str)
    kube_proxy_version: str = kept(factory=str)
    operating_system: str = kept(factory=str)
    architecture: str = kept(factory=str)
    swap: NodeSwapStatus | None = None


class ContainerImage(Object):
    names: tuple[str, ...] = kept(factory=tuple)
    size_bytes: int = 0


class AttachedVolume(Object):
    name: str = kept(factory=str)
    device_path: str = kept(factory=str)


class NodeConfigStatus(Object):
    assigned: NodeConfigSource | None = None
    active: NodeConfigSource | None = None
    last_known_good: NodeConfigSource | None = None
    error: str = ""


class NodeRuntimeHandlerFeatures(Object):
    recursive_read_only_mounts: bool | None = None
    user_namespaces: bool | None = None


class NodeRuntimeHandler(Object):
    name: str = kept(factory=str)
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
