"""Where a pod is in the network: an address and a namespace of its own, or the machine's."""

from volplane.node.network.pods import NoNetwork, Place, PodNetwork, forget_addresses

__all__ = ["NoNetwork", "Place", "PodNetwork", "forget_addresses"]
