"""Cables between a namespace with the addresses of Services and namespaces of pods that others have made."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from volplane.host import netlink, syscalls
from volplane.host.netlink import Netlink
from volplane.host.network import LOOPBACK, Gateway, run_in_namespace, run_in_thread

POD_INTERFACE = "vp-services"


def make_namespace(gateway: Gateway) -> int:
    """Make a network namespace with the gateway's address and its whole range. Returns a descriptor."""

    def enter() -> int:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        own = IPv4Interface(gateway.address)
        with Netlink() as inside:
            inside.execute(
                netlink.set_up(LOOPBACK),
                netlink.add_address(LOOPBACK, own),
                netlink.add_local_route(LOOPBACK, gateway.range),
            )
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return run_in_thread(enter)


def link_pod(services: int, pod: int, address: IPv4Address, gateway: Gateway) -> None:
    """Lay a cable between both namespaces (descriptors), for packets of the pod with this address.

    A cable that the pod already has is kept; one to a pod that had the address before is replaced.
    """
    far_end = f"p{address.packed.hex()}"

    def prepare_services() -> None:
        with suppress(OSError), Netlink() as inside:
            inside.execute(netlink.delete_link(socket.if_nametoindex(far_end)))

    def finish_services() -> None:
        index = socket.if_nametoindex(far_end)
        with Netlink() as inside:
            inside.execute(netlink.set_up(index), netlink.add_link_route(index, IPv4Network(address)))

    def connect_pod() -> bool:
        if POD_INTERFACE in (name for _, name in socket.if_nameindex()):
            return False
        with Netlink() as inside:
            inside.execute(netlink.new_cable(POD_INTERFACE, far_end, services))
            index = socket.if_nametoindex(POD_INTERFACE)
            inside.execute(
                netlink.set_up(index),
                netlink.add_link_route(index, IPv4Network(gateway.address)),
                netlink.replace_route(index, gateway.range, gateway.address),
            )
        return True

    run_in_namespace(services, prepare_services)
    if run_in_namespace(pod, connect_pod):
        run_in_namespace(services, finish_services)
