"""Networks of pods: an address and a network namespace of their own, or the machine's."""

from volplane.node.network.pod_network import NetworkAttachment, PodNetwork, PodNetworkError, forget_addresses

__all__ = ["NetworkAttachment", "PodNetwork", "PodNetworkError", "forget_addresses"]
