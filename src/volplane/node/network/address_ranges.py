"""The address range of a cluster's pods, and each node's part of it. Pure.

All come from the shared address space of RFC 6598, which is not routed on the internet. Ranges that this
machine already uses are left alone.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv4Network
from itertools import chain

SPACE = IPv4Network("100.64.0.0/10")
AVOIDED = (IPv4Network("100.100.0.0/16"),)  # used by services of clouds and VPNs
NODE_PREFIX = 24  # of a node's range: enough for the 110 pods that it takes
MAX_CLUSTER_PREFIX = 22  # of the range of a cluster with few nodes
LOWEST = 2  # of a node's range; number 1 of the first one is the bridge's
SERVICES = 254  # the number of the address by which the node's pods reach Services


def prefix_for(nodes: int) -> int:
    """The prefix of a range for so many nodes."""
    return min(MAX_CLUSTER_PREFIX, NODE_PREFIX - max(nodes - 1, 0).bit_length())


def candidates(prefix: int, seed: str) -> Iterator[IPv4Network]:
    """All ranges of that size, in an order that depends on the seed."""
    count = 1 << (prefix - SPACE.prefixlen)
    step = 1 << (32 - prefix)
    chosen = random.Random(seed)
    first, stride = chosen.randrange(count), chosen.randrange(count) | 1  # an odd stride visits all
    for number in range(count):
        index = (first + number * stride) % count
        found = IPv4Network((int(SPACE.network_address) + index * step, prefix))
        if not any(found.overlaps(other) for other in AVOIDED):
            yield found


def node_range(whole: IPv4Network, index: int) -> IPv4Network:
    """The range of the node with that number, counted from 1."""
    return IPv4Network((int(whole.network_address) + ((index - 1) << (32 - NODE_PREFIX)), NODE_PREFIX))


def fits_nodes(whole: IPv4Network, nodes: int) -> bool:
    return whole.prefixlen <= prefix_for(nodes)


def service_address(share: IPv4Network) -> IPv4Address:
    """The address in a node's range by which its pods reach Services."""
    return share[_services_number(share)]


def _services_number(share: IPv4Network) -> int:
    return min(SERVICES, share.num_addresses - 2)


def next_free(
    share: IPv4Network, taken: Collection[IPv4Address], after: int
) -> tuple[IPv4Address, int] | None:
    """The next free address and its number in the node's range; None if all are taken.

    Round robin: an address is unused as long as possible before another pod gets it.
    """
    first, highest = int(share.network_address), _services_number(share) - 1
    for number in chain(range(max(after + 1, LOWEST), highest + 1), range(LOWEST, min(after, highest) + 1)):
        if (address := IPv4Address(first + number)) not in taken:
            return address, number
    return None
