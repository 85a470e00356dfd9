"""Services for a node's pods: their addresses, their node ports and their names."""

from volplane.node.services.bridged import BridgedServices
from volplane.node.services.linked import LinkedServices
from volplane.node.services.service_network import ServiceNetwork, ServiceShares

__all__ = ["BridgedServices", "LinkedServices", "ServiceNetwork", "ServiceShares"]
