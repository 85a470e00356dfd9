"""Cluster IPs, IP families and node ports of Services.

Free addresses are chosen at random from a large range, so that servers on one store need no shared allocator.
Two creates that overlap do not see each other's choice: a pair of them chooses the same address with a
probability of about one in a million. The same address given to both by their users is not noticed.
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import structs

from volplane.api.core import Service, ServiceSpec
from volplane.api.errors import Cause, InternalError, invalid

CLUSTER_IPS = ipaddress.IPv4Network("10.96.0.0/12")
API_SERVER_IP = "10.96.0.1"
NODE_PORTS = range(30000, 32768)
HEADLESS = "None"

T = TypeVar("T")


def is_headless(spec: ServiceSpec) -> bool:
    return spec.cluster_ip == HEADLESS


def needs_cluster_ip(spec: ServiceSpec) -> bool:
    return spec.type != "ExternalName" and not is_headless(spec)


def needs_node_ports(spec: ServiceSpec) -> bool:
    return spec.type == "NodePort" or (
        spec.type == "LoadBalancer" and spec.allocate_load_balancer_node_ports is not False
    )


def set_families(spec: ServiceSpec) -> ServiceSpec:
    """This cluster has IPv4 only. A Service whose endpoints its user writes may have addresses of both."""
    if spec.type == "ExternalName":
        return spec
    both = is_headless(spec) and not spec.selector
    families = spec.ip_families or (("IPv4", "IPv6") if both else ("IPv4",))
    policy = spec.ip_family_policy or ("RequireDualStack" if len(families) > 1 else "SingleStack")
    return structs.replace(spec, ip_families=families, ip_family_policy=policy)


def allocate(spec: ServiceSpec, others: Iterable[Service]) -> ServiceSpec:
    """The spec with a cluster IP and node ports where it needs them and has none."""
    held = list(others)
    if needs_cluster_ip(spec) and not spec.cluster_ip:
        used = {o.spec.cluster_ip for o in held} | {API_SERVER_IP}
        chosen = _choose(_random_address, used)
        spec = structs.replace(spec, cluster_ip=chosen, cluster_ips=(chosen,))
    if needs_node_ports(spec):
        ports_used = {p.node_port for o in held for p in o.spec.ports} | {p.node_port for p in spec.ports}
        ports = []
        for port in spec.ports:
            number = port.node_port or _choose(lambda: random.choice(NODE_PORTS), ports_used)
            ports_used.add(number)
            ports.append(structs.replace(port, node_port=number))
        spec = structs.replace(spec, ports=tuple(ports))
    return set_families(spec)


def keep_allocated(old: ServiceSpec, new: ServiceSpec) -> ServiceSpec:
    """A writer that leaves allocated values out keeps them."""
    if needs_cluster_ip(old) and needs_cluster_ip(new) and not new.cluster_ip:
        new = structs.replace(new, cluster_ip=old.cluster_ip, cluster_ips=old.cluster_ips)
    if new.type == "ExternalName" and old.type != "ExternalName" and new.cluster_ip == old.cluster_ip:
        return structs.replace(new, cluster_ip="", cluster_ips=(), ip_families=(), ip_family_policy=None)
    known = {(p.name, p.port, p.protocol): p.node_port for p in old.ports}
    if needs_node_ports(new):
        ports = [
            structs.replace(p, node_port=p.node_port or known.get((p.name, p.port, p.protocol), 0))
            for p in new.ports
        ]
        new = structs.replace(new, ports=tuple(ports))
    return new


def find_problem(spec: ServiceSpec, others: Iterable[Service]) -> Cause | None:
    """The reason why a given cluster IP cannot be had."""
    given = spec.cluster_ip
    if not given or not needs_cluster_ip(spec):
        return None
    why = ""
    try:
        inside = ipaddress.ip_address(given) in CLUSTER_IPS
    except ValueError:
        return invalid(
            "spec.clusterIPs[0]", given, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
        )
    if not inside:
        why = f"the provided IP ({given}) is not in the valid range. The range of valid IPs is {CLUSTER_IPS}"
    elif any(other.spec.cluster_ip == given for other in others):
        why = "provided IP is already allocated"
    return invalid("spec.clusterIPs", [given], f"failed to allocate IP {given}: {why}") if why else None


def _random_address() -> str:
    return str(CLUSTER_IPS[random.randrange(2, CLUSTER_IPS.num_addresses - 1)])


def _choose(draw: Callable[[], T], used: set[T], attempts: int = 100_000) -> T:
    for _ in range(attempts):
        if (found := draw()) not in used:
            return found
    raise InternalError("failed to allocate a serviceIP or nodePort: range is full")
