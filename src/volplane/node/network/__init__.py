"""Networks of pods: an address and a network namespace of their own, or the machine's."""

from volplane.node.network.interface import NetworkAttachment, NetworkProvider, PodNetworkError
from volplane.node.network.pod_network import PodNetwork, forget_addresses

__all__ = ["NetworkAttachment", "NetworkProvider", "PodNetwork", "PodNetworkError", "forget_addresses"]
