"""discovery.k8s.io/v1: EndpointSlice."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from volplane.api.core import ObjectReference
from volplane.api.meta import Resource
from volplane.api.object import Object, no_omitempty, set_list


class EndpointConditions(Object):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class ForZone(Object):
    name: str = no_omitempty(factory=str)


class ForNode(Object):
    name: str = no_omitempty(factory=str)


class EndpointHints(Object):
    for_zones: tuple[ForZone, ...] = ()
    for_nodes: tuple[ForNode, ...] = ()


class Endpoint(Object):
    addresses: Annotated[tuple[str, ...], set_list] = no_omitempty(factory=tuple)
    conditions: EndpointConditions = EndpointConditions()
    hostname: str | None = None
    target_ref: ObjectReference | None = None
    deprecated_topology: Mapping[str, str] = {}
    node_name: str | None = None
    zone: str | None = None
    hints: EndpointHints | None = None


class EndpointPort(Object):
    atomic: ClassVar[bool] = True
    name: str | None = None
    protocol: str | None = None
    port: int | None = None
    app_protocol: str | None = None


class EndpointSlice(Resource):
    address_type: str = no_omitempty(factory=str)
    endpoints: tuple[Endpoint, ...] = no_omitempty(factory=tuple)
    ports: tuple[EndpointPort, ...] = no_omitempty(factory=tuple)
