"""Network namespaces, veth pairs and bridges on the real kernel."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from volplane.host import network
from volplane.host.netlink import Netlink, add_address, new_bridge
from volplane.host.network import Bridge, RangeInUse
from volplane.node.network import address_ranges

pytestmark = pytest.mark.root


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[Bridge]:
    whole = network.first_free(address_ranges.candidates(22, str(tmp_path)), network.list_used_ranges())
    assert whole is not None
    made = Bridge(f"vpt{os.getpid()}", whole, str(tmp_path))
    yield made
    network.remove_bridge(made.name)


def names() -> list[str]:
    with Netlink() as machine:
        return [link.name for link in machine.links()]


def join_namespace(bridge: Bridge, number: int) -> tuple[int, IPv4Address]:
    address = bridge.range.network_address + number
    return network.join(bridge, address, about=bridge.owner).namespace, address


def serving(namespace: int, words: bytes, port: int = 5432) -> socket.socket:
    """Answers one connection from within the namespace, on all of its addresses."""
    listening = network.run_in_namespace(namespace, lambda: socket.create_server(("0.0.0.0", port)))

    def answer() -> None:
        connection, _ = listening.accept()
        connection.sendall(words)
        connection.close()

    threading.Thread(target=answer, daemon=True).start()
    return listening


def receive_from(address: IPv4Address, port: int = 5432) -> bytes:
    with socket.create_connection((str(address), port), timeout=60) as connection:
        return connection.recv(100)


def test_two_namespaces_have_one_port_each_and_both_are_reached(bridge: Bridge) -> None:
    places = [join_namespace(bridge, number) for number in (2, 3)]
    servers = [serving(namespace, b"%d" % namespace) for namespace, _ in places]
    try:
        assert [receive_from(address) for _, address in places] == [b"%d" % n for n, _ in places]
    finally:
        for server in servers:
            server.close()
        for namespace, _ in places:
            os.close(namespace)


def test_namespaces_reach_each_other_and_nothing_else(bridge: Bridge) -> None:
    (one, _), (other, address) = join_namespace(bridge, 2), join_namespace(bridge, 3)
    server = serving(other, b"hello")
    try:
        assert network.run_in_namespace(one, lambda: receive_from(address)) == b"hello"
        with pytest.raises(OSError, match=os.strerror(errno.ENETUNREACH)):
            network.run_in_namespace(one, lambda: receive_from(IPv4Address("192.0.2.1")))
    finally:
        server.close()
        os.close(one)
        os.close(other)


def test_to_plug_twice_does_no_harm(bridge: Bridge) -> None:
    namespace, address = join_namespace(bridge, 2)
    again = network.join(bridge, address, about=bridge.owner, namespace=namespace).namespace
    assert os.path.sameopenfile(namespace, again)
    assert network.veth_name(namespace) in names()
    os.close(namespace)
    os.close(again)


def test_a_bridge_that_was_half_made_is_completed(bridge: Bridge) -> None:
    with Netlink() as machine:
        machine.execute(new_bridge(bridge.name, mac=network.mac_of(bridge.address.ip), group=bridge.group))
    index = network.ensure_bridge(bridge)
    with Netlink() as machine, pytest.raises(FileExistsError):
        machine.execute(add_address(index, bridge.address))


def test_a_range_that_is_in_use_is_refused(bridge: Bridge) -> None:
    network.ensure_bridge(bridge)
    inside = IPv4Network((int(bridge.range.network_address) + 256, 24))
    assert any(inside.overlaps(other) for other in network.list_used_ranges())
    assert not any(inside.overlaps(other) for other in network.list_used_ranges(bridge.name))
    with pytest.raises(RangeInUse):
        network.ensure_bridge(Bridge(f"{bridge.name}x", inside, bridge.owner))
    assert f"{bridge.name}x" not in names()


def test_a_bridge_goes_with_all_its_cables_and_a_second_time_there_is_nothing(bridge: Bridge) -> None:
    namespace, _ = join_namespace(bridge, 2)
    cable = network.veth_name(namespace)
    assert {cable, bridge.name} <= set(names())
    network.remove_bridge(bridge.name)
    assert not {cable, bridge.name} & set(names())
    network.remove_bridge(bridge.name)
    os.close(namespace)


def test_who_it_belongs_to_is_written_on_it(bridge: Bridge) -> None:
    namespace, _ = join_namespace(bridge, 2)
    for name in (bridge.name, network.veth_name(namespace)):
        assert Path(f"/sys/class/net/{name}/ifalias").read_text().strip() == bridge.owner
    os.close(namespace)


def test_a_thread_that_was_inside_leaves_nobody_inside(bridge: Bridge) -> None:
    before = os.readlink("/proc/thread-self/ns/net")
    namespace, _ = join_namespace(bridge, 2)
    inside = network.run_in_namespace(namespace, lambda: os.readlink("/proc/thread-self/ns/net"))
    assert inside != before == os.readlink("/proc/thread-self/ns/net")
    with pytest.raises(ZeroDivisionError):
        network.run_in_namespace(namespace, lambda: 1 // 0)
    assert network.open_namespace(os.getpid()) == -1
    os.close(namespace)


def test_somebody_can_listen_for_a_namespace_inside_it(bridge: Bridge) -> None:
    host, address = IPv4Address("192.0.2.7"), bridge.range.network_address + 2
    made = network.join(bridge, address, about=bridge.owner, listen=[(host, 6443)])
    (listening,) = made.listening
    assert isinstance(listening, socket.socket)
    again = network.join(bridge, address, about=bridge.owner, namespace=made.namespace, listen=[(host, 6443)])
    assert isinstance(again.listening[0], OSError)  # the port is already in use

    def dial() -> None:
        socket.create_connection((str(host), 6443), timeout=60).close()

    network.run_in_namespace(made.namespace, dial)
    listening.accept()[0].close()
    listening.close()
    for namespace in (made.namespace, again.namespace):
        os.close(namespace)
