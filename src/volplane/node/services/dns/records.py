"""The names of Services and pods, as Kubernetes' DNS specification 1.1.0 defines them. Pure.

    SERVICE.NAMESPACE.svc.DOMAIN                    A: the Service's address, or those of its ready endpoints
    HOSTNAME.SERVICE.NAMESPACE.svc.DOMAIN           A: one endpoint
    _PORT._PROTOCOL.SERVICE.NAMESPACE.svc.DOMAIN    SRV: the port, and the names above
    10-1-2-3.NAMESPACE.pod.DOMAIN                   A: the address in the name
    4.3.2.10.in-addr.arpa                           PTR: the name that has this address

The machine's own servers have to answer for all other names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from ipaddress import IPv4Address, IPv4Network
from typing import Protocol

from msgspec import Struct

from volplane.api.core import Service, ServicePort
from volplane.api.discovery import Endpoint, EndpointSlice
from volplane.rules.service_endpoints import (
    TCP,
    cluster_address,
    endpoint_hostname,
    find_targets,
    is_headless,
    list_ready,
    parse_dashed,
)

SPECIFICATION = "1.1.0"
REVERSE = ("in-addr", "arpa")


class DnsRecord(Struct, frozen=True):
    name: str
    type: str  # A, SRV, PTR, CNAME or TXT
    value: str  # an address, a name or a text
    port: int = 0  # of an SRV record


class DnsResult(Enum):
    FOUND = "NOERROR"  # the name exists; without records, it has none of the type
    NO_SUCH_NAME = "NXDOMAIN"


class DnsAnswer(Struct, frozen=True):
    result: DnsResult
    records: tuple[DnsRecord, ...] = ()
    additional: tuple[DnsRecord, ...] = ()  # the addresses of names in `records`


class NameSource(Protocol):
    """What the caches show."""

    def find_service(self, namespace: str, name: str) -> Service | None: ...
    def slices_of(self, service: Service) -> Sequence[EndpointSlice]: ...
    def has_services(self, namespace: str) -> bool: ...
    def services_at(self, address: str) -> Iterable[Service]:
        """Those with this address of their own."""
        ...

    def headless_services_at(self, address: str) -> Iterable[Service]:
        """Those with an endpoint at this address."""
        ...


class DnsZone(Struct, frozen=True):
    """What this server answers for."""

    domain: str = "cluster.local"
    own_ranges: tuple[IPv4Network, ...] = ()  # no other server knows names for addresses in these

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.domain.split("."))

    def owns(self, name: str) -> bool:
        """`name`: in lower case, without the dot at its end."""
        labels = tuple(name.split("."))
        if (address := _reversed_address(labels)) is not None:
            return any(address in own for own in self.own_ranges)
        return labels[-len(self.labels) :] == self.labels


_NO_SUCH_NAME = DnsAnswer(DnsResult.NO_SUCH_NAME)
_EMPTY = DnsAnswer(DnsResult.FOUND)


def look_up(zone: DnsZone, name: str, type: str, source: NameSource) -> DnsAnswer:
    """`name`: one that the zone owns."""
    labels = tuple(name.split("."))
    if (reverse := _reversed_address(labels)) is not None:
        return _look_up_address(zone, name, str(reverse), type, source)
    match labels[: -len(zone.labels)]:
        case () | ("svc",) | ("pod",):
            return _EMPTY
        case ("dns-version",):
            return _only(type, DnsRecord(name, "TXT", SPECIFICATION))
        case (namespace, "svc" | "pod"):
            return _EMPTY if source.has_services(namespace) else _NO_SUCH_NAME
        case (dashed, _, "pod"):
            address = parse_dashed(dashed)
            return _only(type, DnsRecord(name, "A", address)) if address else _NO_SUCH_NAME
        case (*inner, service, namespace, "svc"):
            found = source.find_service(namespace, service)
            if found is None:
                return _NO_SUCH_NAME
            return _look_up_service(name, tuple(inner), type, found, source.slices_of(found), zone)
    return _NO_SUCH_NAME


def _only(type: str, record: DnsRecord) -> DnsAnswer:
    return DnsAnswer(DnsResult.FOUND, (record,) if type in (record.type, "ANY") else ())


# --- Services


def _look_up_service(
    name: str,
    inner: tuple[str, ...],
    type: str,
    service: Service,
    slices: Sequence[EndpointSlice],
    zone: DnsZone,
) -> DnsAnswer:
    own_name = _name_of(service, zone)
    ports = service.spec.ports
    match inner:
        case ():
            if service.spec.type == "ExternalName":
                external = service.spec.external_name.rstrip(".")
                return DnsAnswer(DnsResult.FOUND, (DnsRecord(name, "CNAME", external),))
            if type == "SRV":
                return _answer_ports(name, own_name, ports, service, slices)
            return _answer_addresses(name, type, _addresses_of(service, slices))
        case (protocol,) if protocol.startswith("_"):
            known = any(_label(port.protocol or TCP) == protocol for port in ports)
            return _EMPTY if known else _NO_SUCH_NAME
        case (hostname,):
            here = [e for e in list_ready(slices) if endpoint_hostname(e) == hostname]
            return _answer_addresses(name, type, _addresses(here))
        case (port_name, protocol) if port_name.startswith("_") and protocol.startswith("_"):
            chosen = [
                port
                for port in ports
                if port.name and (_label(port.name), _label(port.protocol or TCP)) == (port_name, protocol)
            ]
            if not chosen:
                return _NO_SUCH_NAME
            return (
                _answer_ports(name, own_name, chosen, service, slices) if type in ("SRV", "ANY") else _EMPTY
            )
    return _NO_SUCH_NAME


def _label(word: str) -> str:
    return f"_{word.lower()}"


def _name_of(service: Service, zone: DnsZone) -> str:
    return f"{service.name}.{service.namespace}.svc.{zone.domain}"


def _addresses_of(service: Service, slices: Sequence[EndpointSlice]) -> list[str]:
    if is_headless(service):
        return _addresses(list_ready(slices))
    own = cluster_address(service)
    return [own] if own else []


def _addresses(endpoints: Iterable[Endpoint]) -> list[str]:
    return list(dict.fromkeys(e.addresses[0] for e in endpoints))


def _answer_addresses(name: str, type: str, addresses: Sequence[str]) -> DnsAnswer:
    if not addresses:  # a headless Service without ready endpoints has no name
        return _NO_SUCH_NAME
    records = (DnsRecord(name, "A", address) for address in addresses)
    return DnsAnswer(DnsResult.FOUND, tuple(records) if type in ("A", "ANY") else ())


def _answer_ports(
    name: str,
    own_name: str,
    ports: Iterable[ServicePort],
    service: Service,
    slices: Sequence[EndpointSlice],
) -> DnsAnswer:
    own = cluster_address(service)
    found: list[tuple[str, str, int]] = []  # name, address and port
    for port in ports:
        if own:
            found.append((own_name, own, port.port))
        else:
            found += _headless_targets(own_name, port, service, slices)
    if not found:
        return _NO_SUCH_NAME
    records = dict.fromkeys(DnsRecord(name, "SRV", target, port) for target, _, port in found)
    addresses = dict.fromkeys(DnsRecord(target, "A", address) for target, address, _ in found)
    return DnsAnswer(DnsResult.FOUND, tuple(records), tuple(addresses))


def _headless_targets(
    own_name: str, port: ServicePort, service: Service, slices: Sequence[EndpointSlice]
) -> Iterator[tuple[str, str, int]]:
    hostnames = {e.addresses[0]: endpoint_hostname(e) for e in list_ready(slices)}
    for target in find_targets(port, slices):
        if hostname := hostnames.get(target.address):
            yield f"{hostname}.{own_name}", target.address, target.port


# --- addresses


def _reversed_address(labels: tuple[str, ...]) -> IPv4Address | None:
    if labels[-2:] != REVERSE:
        return None
    try:
        return IPv4Address(".".join(reversed(labels[:-2])))
    except ValueError:
        return None


def _look_up_address(zone: DnsZone, name: str, address: str, type: str, source: NameSource) -> DnsAnswer:
    names = [_name_of(service, zone) for service in source.services_at(address)]
    for service in source.headless_services_at(address):
        names += _names_of_endpoint(service, address, source.slices_of(service), zone)
    if not names:
        return _NO_SUCH_NAME
    records = (DnsRecord(name, "PTR", each) for each in dict.fromkeys(names))
    return DnsAnswer(DnsResult.FOUND, tuple(records) if type in ("PTR", "ANY") else ())


def _names_of_endpoint(
    service: Service, address: str, slices: Sequence[EndpointSlice], zone: DnsZone
) -> Iterator[str]:
    for endpoint in list_ready(slices):
        if endpoint.addresses[0] == address:
            yield f"{endpoint_hostname(endpoint)}.{_name_of(service, zone)}"
