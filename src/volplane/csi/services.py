"""All methods, from the generated descriptors: service, messages, and whether they stream.

Method names are unique across the services, so a name alone identifies a method.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from google.protobuf import descriptor as descriptors
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from msgspec import Struct

from volplane.csi.proto import (
    controller_pb2,
    group_pb2,
    identity_pb2,
    metadata_pb2,
    node_pb2,
    registration_pb2,
)

_MODULES = (identity_pb2, controller_pb2, group_pb2, metadata_pb2, node_pb2, registration_pb2)


class Method(Struct, frozen=True):
    service: str  # "csi.v1.Controller"
    name: str
    request: type[Message]
    reply: type[Message]
    streams: bool = False  # several replies to one request

    @property
    def path(self) -> str:
        return f"/{self.service}/{self.name}"


def list_methods(service: descriptors.ServiceDescriptor) -> dict[str, Method]:
    """The methods of a service by name."""
    return {
        m.name: Method(
            service.full_name,
            m.name,
            GetMessageClass(m.input_type),
            GetMessageClass(m.output_type),
            m.server_streaming,
        )
        for m in service.methods
    }


SERVICES: Mapping[str, Mapping[str, Method]] = MappingProxyType(
    {
        service.full_name: MappingProxyType(list_methods(service))
        for module in _MODULES
        for service in module.DESCRIPTOR.services_by_name.values()
    }
)
METHODS: Mapping[str, Method] = MappingProxyType(
    {name: method for methods in SERVICES.values() for name, method in methods.items()}
)
