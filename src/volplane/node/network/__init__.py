"""Where a pod is in the network: an address and a namespace of its own, or the machine's."""

from volplane.node.network.pod_network import NetworkAttachment, PodNetwork, PodNetworkError, forget_addresses

__all__ = ["NetworkAttachment", "PodNetwork", "PodNetworkError", "forget_addresses"]
