"""A small rtnetlink client: interfaces, addresses and routes, as far as pod networks need them.

A netlink socket always works on the network namespace in which it was created. Requests that are sent
together are carried out in order, and the first that fails raises.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Self

from msgspec import Struct

NEW_LINK, DELETE_LINK, GET_LINK, NEW_ADDRESS, NEW_ROUTE, GET_ROUTE = 16, 17, 18, 20, 24, 26

_ERROR, _DONE = 2, 3
_REQUEST, _ACKNOWLEDGE, _DUMP, _REPLACE, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x300, 0x100, 0x200, 0x400
_NESTED = 0x8000
_UP = 1

_MAC, _NAME, _MASTER, _INFO, _ALIAS, _GROUP, _NAMESPACE = 1, 3, 10, 18, 20, 27, 28  # of a link
_KIND, _DATA, _PEER = 1, 2, 1  # of its _INFO, and of a veth's _DATA
_ADDRESS, _LOCAL = 1, 2  # of an address
_DESTINATION, _OUTPUT_INTERFACE, _GATEWAY = 1, 4, 5  # of a route
_MAIN, _LOCAL_TABLE = 254, 255  # tables of routes
_STATIC = 4  # protocol of a route: made by an administrator
_GLOBAL_SCOPE, _LINK_SCOPE, _HOST_SCOPE = 0, 253, 254
_UNICAST, _LOCAL_ROUTE = 1, 2  # types of a route

_LARGEST = 1 << 16
_LONGEST_ALIAS = 200


class NetlinkRequest(Struct, frozen=True):
    kind: int
    flags: int
    body: bytes


class Route(Struct, frozen=True):
    to: IPv4Network
    interface: int  # its index


class Link(Struct, frozen=True):
    index: int
    name: str
    master: int = 0
    group: int = 0


class Netlink:
    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        self._socket.bind((0, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def execute(self, *requests: NetlinkRequest) -> None:
        """Carry out all requests. Raises OSError with the kernel's reason for the first one that failed."""
        sent = [
            _message(r.kind, r.flags | _REQUEST | _ACKNOWLEDGE, r.body, n) for n, r in enumerate(requests)
        ]
        self._socket.send(b"".join(sent))
        codes: list[int] = []
        while len(codes) < len(requests):
            codes += [struct.unpack_from("=i", body)[0] for kind, body in self._receive() if kind == _ERROR]
        if wrong := next((code for code in codes if code), 0):
            raise OSError(-wrong, os.strerror(-wrong))

    def links(self) -> list[Link]:
        return [_link(body) for body in self._dump(GET_LINK, _header(0))]

    def routes(self) -> list[Route]:
        """IPv4 routes of all tables, without default routes."""
        head = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0)
        return [route for body in self._dump(GET_ROUTE, head) if (route := _route(body)).to.prefixlen]

    def _dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        self._socket.send(_message(kind, _REQUEST | _DUMP, body, 0))
        while True:
            for answer, found in self._receive():
                if answer == _DONE:
                    return
                if answer == _ERROR:
                    code = struct.unpack_from("=i", found)[0]
                    raise OSError(-code, os.strerror(-code))
                yield found

    def _receive(self) -> Iterator[tuple[int, bytes]]:
        data = self._socket.recv(_LARGEST)
        while data:
            length, kind = struct.unpack_from("=IH", data)
            yield kind, data[16:length]
            data = data[_pad(length) :]


# --- requests


def new_bridge(name: str, *, mac: bytes, group: int) -> NetlinkRequest:
    body = _header(0, up=True) + _text(_NAME, name) + _attribute(_MAC, mac)
    return _create(body + _number(_GROUP, group) + _nest(_INFO, _attribute(_KIND, b"bridge")))


def new_veth_pair(
    name: str, *, bridge: int, group: int, inside: str, mac: bytes, namespace: int
) -> NetlinkRequest:
    """A veth pair: `name` in the bridge and up; `inside` in the namespace and down."""
    peer = _header(0) + _text(_NAME, inside) + _attribute(_MAC, mac) + _number(_NAMESPACE, namespace)
    info = _attribute(_KIND, b"veth") + _nest(_DATA, _nest(_PEER, peer))
    body = _header(0, up=True) + _text(_NAME, name) + _number(_MASTER, bridge)
    return _create(body + _number(_GROUP, group) + _nest(_INFO, info))


def new_cable(name: str, far_end: str, namespace: int) -> NetlinkRequest:
    """A veth pair without a bridge: `name` here, and `far_end` in the namespace; both are down."""
    peer = _header(0) + _text(_NAME, far_end) + _number(_NAMESPACE, namespace)
    info = _attribute(_KIND, b"veth") + _nest(_DATA, _nest(_PEER, peer))
    return _create(_header(0) + _text(_NAME, name) + _nest(_INFO, info))


def set_alias(name: str, text: str) -> NetlinkRequest:
    """Set the alias that `ip link` shows. The kernel ignores it in the request that creates a link."""
    return NetlinkRequest(NEW_LINK, 0, _header(0) + _text(_NAME, name) + _text(_ALIAS, text[:_LONGEST_ALIAS]))


def set_up(index: int) -> NetlinkRequest:
    return NetlinkRequest(NEW_LINK, 0, _header(index, up=True))


def add_address(index: int, address: IPv4Interface) -> NetlinkRequest:
    packed = address.ip.packed
    head = struct.pack("=BBBBI", socket.AF_INET, address.network.prefixlen, 0, 0, index)
    body = head + _attribute(_LOCAL, packed) + _attribute(_ADDRESS, packed)
    return NetlinkRequest(NEW_ADDRESS, _CREATE | _EXCLUSIVE, body)


def replace_route(index: int, to: IPv4Network, via: IPv4Address) -> NetlinkRequest:
    """A route by a gateway that the interface reaches directly, in place of an earlier one."""
    gateway = _attribute(_GATEWAY, via.packed)
    return _new_route(index, to, (_MAIN, _STATIC, _GLOBAL_SCOPE, _UNICAST), gateway, flags=_REPLACE)


def add_link_route(index: int, to: IPv4Network) -> NetlinkRequest:
    """A route to addresses at the other end of the interface."""
    return _new_route(index, to, (_MAIN, _STATIC, _LINK_SCOPE, _UNICAST))


def add_local_route(index: int, to: IPv4Network) -> NetlinkRequest:
    """All addresses of the range become addresses of the namespace itself."""
    return _new_route(index, to, (_LOCAL_TABLE, _STATIC, _HOST_SCOPE, _LOCAL_ROUTE))


def _new_route(
    index: int,
    to: IPv4Network,
    sort: tuple[int, int, int, int],
    more: bytes = b"",
    *,
    flags: int = _EXCLUSIVE,
) -> NetlinkRequest:
    """`sort`: table, protocol, scope and type."""
    head = struct.pack("=BBBBBBBBI", socket.AF_INET, to.prefixlen, 0, 0, *sort, 0)
    body = head + _attribute(_DESTINATION, to.network_address.packed) + _number(_OUTPUT_INTERFACE, index)
    return NetlinkRequest(NEW_ROUTE, _CREATE | flags, body + more)


def delete_link(index: int) -> NetlinkRequest:
    return NetlinkRequest(DELETE_LINK, 0, _header(index))


def delete_group(group: int) -> NetlinkRequest:
    return NetlinkRequest(DELETE_LINK, 0, _header(0) + _number(_GROUP, group))


# --- encoding


def _create(body: bytes) -> NetlinkRequest:
    return NetlinkRequest(NEW_LINK, _CREATE | _EXCLUSIVE, body)


def _message(kind: int, flags: int, body: bytes, number: int) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, number, 0) + body


def _header(index: int, *, up: bool = False) -> bytes:
    flags = _UP if up else 0
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, flags)


def _attribute(kind: int, data: bytes) -> bytes:
    length = 4 + len(data)
    return struct.pack("=HH", length, kind) + data + bytes(_pad(length) - length)


def _nest(kind: int, data: bytes) -> bytes:
    return _attribute(kind | _NESTED, data)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")


def _number(kind: int, number: int) -> bytes:
    return _attribute(kind, struct.pack("=I", number))


def _pad(length: int) -> int:
    return (length + 3) & ~3


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        found[kind & ~_NESTED] = data[4:length]
        data = data[_pad(length) :]
    return found


def _link(body: bytes) -> Link:
    index = struct.unpack_from("=i", body, 4)[0]
    found = _attributes(body[16:])
    name = found.get(_NAME, b"").rstrip(b"\0").decode()
    return Link(index, name, _unpack_number(found.get(_MASTER)), _unpack_number(found.get(_GROUP)))


def _route(body: bytes) -> Route:
    length = body[1]
    found = _attributes(body[12:])
    to = IPv4Network((int(IPv4Address(found.get(_DESTINATION, bytes(4)))), length), strict=False)
    return Route(to, _unpack_number(found.get(_OUTPUT_INTERFACE)))


def _unpack_number(data: bytes | None) -> int:
    number: int = struct.unpack("=I", data)[0] if data else 0
    return number
