"""Service and Endpoints. Nothing here routes packets to them."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from volplane.api.core.refs import ObjectReference
from volplane.api.meta import Condition, Resource
from volplane.api.object import IntOrString, Object, field, merge, no_omitempty


class ServicePort(Object):
    name: str = ""
    protocol: str = ""
    app_protocol: str | None = None
    port: int = no_omitempty(factory=int)
    target_port: IntOrString = 0
    node_port: int = 0


class ClientIPConfig(Object):
    timeout_seconds: int | None = None


class SessionAffinityConfig(Object):
    client_ip: ClientIPConfig | None = field(name="clientIP", default=None)


class ServiceSpec(Object):
    ports: Annotated[tuple[ServicePort, ...], merge("port", keys=("port", "protocol"))] = ()
    selector: Mapping[str, str] = {}
    cluster_ip: str = field(name="clusterIP", default="")
    cluster_ips: tuple[str, ...] = field(name="clusterIPs", default=())
    type: str = ""
    external_ips: tuple[str, ...] = field(name="externalIPs", default=())
    session_affinity: str = ""
    load_balancer_ip: str = field(name="loadBalancerIP", default="")
    load_balancer_source_ranges: tuple[str, ...] = ()
    external_name: str = ""
    external_traffic_policy: str = ""
    health_check_node_port: int = 0
    publish_not_ready_addresses: bool = False
    session_affinity_config: SessionAffinityConfig | None = None
    ip_families: tuple[str, ...] = ()
    ip_family_policy: str | None = None
    allocate_load_balancer_node_ports: bool | None = None
    load_balancer_class: str | None = None
    internal_traffic_policy: str | None = None
    traffic_distribution: str | None = None


class PortStatus(Object):
    port: int = no_omitempty(factory=int)
    protocol: str = no_omitempty(factory=str)
    error: str | None = None


class LoadBalancerIngress(Object):
    ip: str = ""
    hostname: str = ""
    ip_mode: str | None = None
    ports: tuple[PortStatus, ...] = ()


class LoadBalancerStatus(Object):
    ingress: tuple[LoadBalancerIngress, ...] = ()


class ServiceStatus(Object):
    load_balancer: LoadBalancerStatus = LoadBalancerStatus()
    conditions: Annotated[tuple[Condition, ...], merge("type")] = ()


class Service(Resource):
    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()


class EndpointAddress(Object):
    atomic: ClassVar[bool] = True
    ip: str = no_omitempty(factory=str)
    hostname: str = ""
    node_name: str | None = None
    target_ref: ObjectReference | None = None


class EndpointPort(Object):
    atomic: ClassVar[bool] = True
    name: str = ""
    port: int = no_omitempty(factory=int)
    protocol: str = ""
    app_protocol: str | None = None


class EndpointSubset(Object):
    addresses: tuple[EndpointAddress, ...] = ()
    not_ready_addresses: tuple[EndpointAddress, ...] = ()
    ports: tuple[EndpointPort, ...] = ()


class Endpoints(Resource):
    subsets: tuple[EndpointSubset, ...] = ()
