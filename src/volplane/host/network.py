"""Networks of pods on this machine: network namespaces with a veth pair to a bridge without uplink.

A namespace is held by a descriptor and by its processes; when all are gone, the kernel removes it with its
veth pair. So a crash can leave only the bridge, whose name its owner knows. Work inside a namespace is done
on a thread that ends afterwards: threads of the executor never change their namespace, and neither do
programs they start.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, flock, ioctl
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import TypeVar

from msgspec import Struct

from volplane.host import netlink, syscalls
from volplane.host.netlink import Netlink

T = TypeVar("T")

LOCK = "/run/volplane-network.lock"  # held while an address range is chosen, on the whole machine
POD_INTERFACE = "eth0"
LOOPBACK = 1  # the index of the loopback interface in every namespace
_NS_GET_USERNS = 0xB701


class RangeInUse(Exception):
    """Another network of this machine uses these addresses."""


class Bridge(Struct, frozen=True):
    name: str
    range: IPv4Network
    owner: str  # shown as the interface's alias

    @property
    def address(self) -> IPv4Interface:
        return IPv4Interface((int(self.range.network_address) + 1, self.range.prefixlen))

    @property
    def group(self) -> int:
        return group_of(self.name)


def group_of(bridge: str) -> int:
    """The interface group of a bridge and its veth pairs, by which they are removed together."""
    return zlib.crc32(bridge.encode()) & 0x7FFFFFFF | 0x1000


def mac_of(address: IPv4Address) -> bytes:
    """Derived from the address, so that ARP caches stay valid when another pod gets the address."""
    return b"\x0a\x58" + address.packed


# --- ranges


@contextmanager
def hold_network_lock() -> Iterator[None]:
    """Keep other processes of this machine from creating a bridge meanwhile."""
    descriptor = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        flock(descriptor, LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def list_used_ranges(except_bridge: str = "") -> list[IPv4Network]:
    """Ranges that this machine has routes for, and the addresses of its name servers."""
    with Netlink() as machine:
        routes, links = machine.routes(), machine.links()
    own = next((link.index for link in links if link.name == except_bridge), -1)
    return [r.to for r in routes if r.interface != own] + list(_name_servers())


def _name_servers() -> Iterator[IPv4Network]:
    with suppress(OSError), open("/etc/resolv.conf") as file:
        for line in file:
            match line.split():
                case ["nameserver", address, *_]:
                    with suppress(ValueError):
                        yield IPv4Network(address)


def first_free(candidates: Iterable[IPv4Network], used: Iterable[IPv4Network]) -> IPv4Network | None:
    avoided = list(used)
    return next((c for c in candidates if not any(c.overlaps(other) for other in avoided)), None)


# --- the bridge


def is_own_network() -> bool:
    """Whether this process may create interfaces: its network namespace belongs to its user namespace.

    Root of an ordinary user's namespace may not, as it uses the machine's network.
    """
    try:
        with open("/proc/self/ns/net", "rb") as network:
            owner = ioctl(network, _NS_GET_USERNS)
    except OSError:
        return False  # it belongs to a namespace around ours
    try:
        return os.fstat(owner).st_ino == os.stat("/proc/self/ns/user").st_ino
    finally:
        os.close(owner)


def ensure_bridge(bridge: Bridge) -> int:
    """Create the bridge, or complete one that an earlier process left incomplete. Return its interface index.

    Raises RangeInUse, or OSError where bridges are not possible.
    """
    with hold_network_lock():
        if any(bridge.range.overlaps(other) for other in list_used_ranges(bridge.name)):
            raise RangeInUse(f"{bridge.range} is in use by another network of this machine")
        with Netlink() as machine:
            _make_bridge(machine, bridge)
        return socket.if_nametoindex(bridge.name)


def _make_bridge(machine: Netlink, bridge: Bridge) -> None:
    mac = mac_of(bridge.address.ip)
    with suppress(FileExistsError):  # another node of the cluster has created it
        machine.execute(
            netlink.new_bridge(bridge.name, mac=mac, group=bridge.group),
            netlink.set_alias(bridge.name, bridge.owner),
        )
    index = socket.if_nametoindex(bridge.name)
    with suppress(FileExistsError):
        machine.execute(netlink.add_address(index, bridge.address))


def remove_bridge(name: str) -> None:
    """Remove the bridge and all veth pairs on it."""
    with Netlink() as machine:
        try:
            machine.execute(netlink.delete_group(group_of(name)))
        except OSError as error:
            if error.errno not in (errno.ENODEV, errno.EINVAL):  # there is no such bridge
                raise


def remove_link(name: str) -> None:
    """Remove a network interface. Raises OSError."""
    with Netlink() as machine:
        machine.execute(netlink.delete_link(socket.if_nametoindex(name)))


# --- namespaces


class JoinedNamespace(Struct, frozen=True):
    namespace: int  # a descriptor
    listening: tuple[socket.socket | OSError, ...] = ()  # the error where listening failed


class Gateway(Struct, frozen=True):
    """Where a namespace sends packets for a range outside of the bridge's."""

    range: IPv4Network
    address: IPv4Address  # on the bridge


def join(
    bridge: Bridge,
    address: IPv4Address,
    *,
    about: str,
    namespace: int = -1,
    listen: Sequence[tuple[IPv4Address, int]] = (),
    gateways: Sequence[Gateway] = (),
) -> JoinedNamespace:
    """Make a network namespace with the address on the bridge, or complete an existing one.

    `listen`: listen inside on these addresses and ports; the loopback interface gets them if needed.
    `gateways`: one with this namespace's own address makes all addresses of its range the namespace's own.
    """
    number = _bridge_index(bridge)

    def enter() -> JoinedNamespace:
        if namespace < 0:
            syscalls.unshare(syscalls.CLONE_NEWNET)
        else:
            syscalls.setns(namespace, syscalls.CLONE_NEWNET)
        entered = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _connect_to_bridge(machine, entered, number, bridge, address, about)
            for gateway in gateways:
                _add_gateway(gateway, address)
            return JoinedNamespace(entered, tuple(_listen(*each) for each in listen))
        except BaseException:
            os.close(entered)
            raise

    with Netlink() as machine:  # created here, so it works on the machine's namespace
        return run_in_thread(enter)


def _connect_to_bridge(
    machine: Netlink, namespace: int, number: int, bridge: Bridge, address: IPv4Address, about: str
) -> None:
    """Create the veth pair and set the address. The caller is in the namespace."""
    cable = veth_name(namespace)
    pair = netlink.new_veth_pair(
        cable,
        bridge=number,
        group=bridge.group,
        inside=POD_INTERFACE,
        mac=mac_of(address),
        namespace=namespace,
    )
    with suppress(FileExistsError):
        machine.execute(pair, netlink.set_alias(cable, about))
    own = IPv4Interface((int(address), bridge.range.prefixlen))
    index = socket.if_nametoindex(POD_INTERFACE)  # another one than before if the pair was removed
    up = (netlink.set_up(LOOPBACK), netlink.set_up(index), netlink.add_address(index, own))
    with Netlink() as inside, suppress(FileExistsError):
        inside.execute(*up)


def _add_gateway(gateway: Gateway, own: IPv4Address) -> None:
    if gateway.address == own:
        route = netlink.add_local_route(LOOPBACK, gateway.range)
    else:
        route = netlink.replace_route(socket.if_nametoindex(POD_INTERFACE), gateway.range, gateway.address)
    with Netlink() as inside, suppress(FileExistsError):
        inside.execute(route)


def _listen(host: IPv4Address, port: int) -> socket.socket | OSError:
    try:
        if not host.is_loopback:
            with Netlink() as inside, suppress(FileExistsError):
                inside.execute(netlink.add_address(LOOPBACK, IPv4Interface(host)))
        return socket.create_server((str(host), port), backlog=128)
    except OSError as error:
        return error


def listen_in_namespace(namespace: int, host: IPv4Address, port: int) -> socket.socket:
    """Listen on this address inside a namespace; its loopback interface gets the address if needed."""
    made = run_in_namespace(namespace, lambda: _listen(host, port))
    if isinstance(made, OSError):
        raise made
    return made


def listen_on_all(
    namespace: int, endpoints: Iterable[tuple[IPv4Address, int]]
) -> list[socket.socket | OSError]:
    """Listen on several addresses of a namespace. The error where that failed."""
    return run_in_namespace(namespace, lambda: [_listen_on_own(*each) for each in endpoints])


def _listen_on_own(host: IPv4Address, port: int) -> socket.socket | OSError:
    try:
        return socket.create_server((str(host), port), backlog=128)
    except OSError as error:
        return error


def open_datagram_socket(namespace: int, host: IPv4Address, port: int) -> socket.socket:
    """A UDP socket that is bound to an address of the namespace."""

    def open_socket() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            made.bind((str(host), port))
        except BaseException:
            made.close()
            raise
        made.setblocking(False)
        return made

    return run_in_namespace(namespace, open_socket)


def open_namespace(pid: int) -> int:
    """The network namespace of a process; -1 if it is the machine's own."""
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if os.path.samestat(os.fstat(descriptor), os.stat("/proc/self/ns/net")):
        os.close(descriptor)
        return -1
    return descriptor


def is_connected(namespace: int) -> bool:
    """Whether the namespace's veth pair exists."""
    return os.path.exists(f"/sys/class/net/{veth_name(namespace)}")


def veth_name(namespace: int) -> str:
    """Named after the namespace, not the pod: an earlier pair of the pod may still exist for a moment."""
    return f"vp{os.fstat(namespace).st_ino:x}"


def _bridge_index(bridge: Bridge) -> int:
    try:
        return socket.if_nametoindex(bridge.name)
    except OSError:  # the bridge was removed
        return ensure_bridge(bridge)


def open_socket_in_namespace(namespace: int) -> socket.socket:
    """A TCP socket that connects from inside the namespace."""

    def open_socket() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setblocking(False)
        return made

    return run_in_namespace(namespace, open_socket)


def run_in_namespace(namespace: int, work: Callable[[], T]) -> T:
    def enter_and_run() -> T:
        syscalls.setns(namespace, syscalls.CLONE_NEWNET)
        return work()

    return run_in_thread(enter_and_run)


def run_in_thread(work: Callable[[], T]) -> T:
    """Run on a thread of its own: a change of namespace ends with the thread."""
    results: list[T] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=run, name="network namespace")
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return results[0]
