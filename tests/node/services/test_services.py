"""Pods reach Services by name, address and node port; the test plays the endpoints controller."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Network
from typing import Any

import dnslib
import pytest

from tests.loops.inprocess import until, world
from tests.node.node_env import NODE, NodeEnv, node_env, read, wait_briefly
from tests.node.test_pod_network import PATIENCE, heard, printed, server
from tests.node.test_pods import shell
from volplane.api.codec import convert
from volplane.api.core import Node, Pod, Secret, Service
from volplane.api.discovery import EndpointSlice
from volplane.api.errors import Forbidden
from volplane.apiserver.strategy import RequestUser
from volplane.base.backoff import Backoff
from volplane.client.client import Client
from volplane.host import network
from volplane.host.netlink import Netlink
from volplane.host.network import Bridge, ensure_bridge
from volplane.node.network.pod_network import bridge_name
from volplane.node.network.relay import Relay
from volplane.node.options import NodeOptions
from volplane.node.services import BridgedServices, ServiceNetwork, ServiceShares, controller

pytestmark = pytest.mark.root

# Prints what the server at each address says, as long as the file of the tests wants it.
_CALL = r"""
use IO::Socket::INET; $| = 1;
while (1) {
    my $s = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => $ARGV[1], Timeout => 5);
    print defined $s ? "heard " . (<$s> // "nothing") . "\n" : "failed: $!\n";
    select undef, undef, undef, 0.2;
}
"""


def caller(host: str, port: int = 80) -> dict[str, Any]:
    return {"image": "x", "command": ["perl", "-e", _CALL, host, str(port)]}


async def make_service(here: NodeEnv, name: str, address: str = "", **spec: Any) -> Service:
    port = {"port": 80, "protocol": "TCP"}
    more = {"clusterIP": address} if address else {}
    body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"ports": [port], **more, **spec}}
    return await here.client.create(convert(Service, body))


async def set_endpoints(
    here: NodeEnv, service: str, pods: Sequence[Pod], *, port: int = 5432, hostnames: Sequence[str] = ()
) -> None:
    """Replace the endpoints of a Service."""
    await here.client.delete(EndpointSlice, f"{service}-1", "default", missing_ok=True)
    endpoints = [
        {
            "addresses": [pod.status.pod_ip],
            "conditions": {"ready": True},
            **({"hostname": hostnames[index]} if hostnames else {}),
        }
        for index, pod in enumerate(pods)
    ]
    body = {
        "metadata": {
            "name": f"{service}-1",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "", "port": port, "protocol": "TCP"}],
    }
    await here.client.create(convert(EndpointSlice, body))


async def test_a_pod_reaches_a_service_by_its_name_as_long_as_it_has_endpoints() -> None:
    async with node_env() as here:
        await here.start()
        for name in ("one", "two"):
            await here.pod(name, container=server(f"I am {name}"))
        one, two = await here.wait_until_ready("one"), await here.wait_until_ready("two")
        await make_service(here, "web")
        await here.pod("client", container=caller("web"))
        client = await here.wait_until_ready("client")
        await printed(here, client, "failed: Connection refused")
        await set_endpoints(here, "web", [one, two])
        for name in ("one", "two"):
            await printed(here, client, f"heard I am {name}")
        await here.delete("one")
        await here.wait_for_phase("gone", "one")  # it still is an endpoint: the other is tried
        before = (await printed(here, client, "heard")).count("two")
        await until(lambda: _has_more(here, client, "heard I am two", before + 3), PATIENCE)
        await here.client.delete(Service, "web", "default")
        await printed(here, client, "failed: Invalid argument")  # Perl's word for a name that is not known


async def _has_more(here: NodeEnv, pod: Pod, part: str, count: int) -> bool:
    return (await printed(here, pod, part)).count(part) >= count


async def test_pods_find_their_peers_and_themselves_by_name() -> None:
    names = "getent ahostsv4 db-1.db; getent hosts db-1.db.default.svc.cluster.local; hostname -f"
    script = f"until getent hosts db-1.db; do sleep 0.1; done; {names}; cat /etc/resolv.conf; echo end"
    async with node_env() as here:
        await here.start()
        await make_service(here, "db", "None")
        for name in ("db-0", "db-1"):
            container = shell(f"{script}; exec sleep 1000")
            await here.pod(name, container=container, hostname=name, subdomain="db")
        pods = [await here.wait_until_ready(name) for name in ("db-0", "db-1")]
        await set_endpoints(here, "db", pods, hostnames=("db-0", "db-1"))
        shown = await printed(here, pods[0], "end\n")
        address, full = pods[1].status.pod_ip, "db-1.db.default.svc.cluster.local"
        assert f"{address:<15} STREAM {full}" in shown
        assert f"{address:<15} {full}" in shown
        assert "db-0.db.default.svc.cluster.local\n" in shown
        assert "search default.svc.cluster.local svc.cluster.local cluster.local" in shown
        node = await here.client.get(Node, NODE)
        assert f"nameserver {node.spec.pod_cidr.removesuffix('.0/24')}.254\n" in shown
        assert "options ndots:5\n" in shown


async def test_the_dns_policy_of_a_pod_is_followed() -> None:
    own = {"nameservers": ["192.0.2.1"], "searches": ["example.org"], "options": [{"name": "rotate"}]}
    async with node_env() as here:
        await here.start()
        print_file = shell("cat /etc/resolv.conf; echo end; exec sleep 1000")
        await here.pod("own", container=print_file, dnsPolicy="None", dnsConfig=own)
        await here.pod("plain", container=print_file, dnsPolicy="Default")
        await here.pod("host", container=print_file, hostNetwork=True)
        with_names = shell("until getent hosts web.default.svc.cluster.local; do sleep 0.1; done; echo end")
        on_host: dict[str, Any] = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
        await here.pod("names", container=with_names, **on_host)
        service = await make_service(here, "web")
        pods = {name: await here.wait_until_ready(name) for name in ("own", "plain", "host")}
        wanted = "search example.org\nnameserver 192.0.2.1\noptions rotate\nend\n"
        assert await printed(here, pods["own"], "end") == wanted
        machine = read("/etc/resolv.conf")
        assert await printed(here, pods["host"], "end") == f"{machine}end\n"
        plain = await printed(here, pods["plain"], "end")
        assert "cluster.local" not in plain.replace(machine, "")
        assert ".254\n" in plain
        names = await here.client.get(Pod, "names", "default")
        assert service.spec.cluster_ip in await printed(here, names, "end")


async def test_the_api_server_has_a_name() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"the API server\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as api, node_env() as here:
        port = api.sockets[0].getsockname()[1]
        await here.start()
        machine = convert(Pod, {"status": {"podIP": "127.0.0.1"}})  # an endpoint that is no pod
        await make_service(here, "kubernetes", "10.96.0.1")
        await set_endpoints(here, "kubernetes", [machine], port=port)
        await here.pod(container=caller("kubernetes.default.svc"))
        await printed(here, await here.wait_until_ready(), "heard the API server")


def free_node_port() -> int:
    while True:
        port = random.randrange(30000, 32768)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


async def test_a_node_port_leads_from_the_machine_to_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "NODE_PORT_IN_USE", Backoff(0.1, 0.1))
    async with node_env() as here:
        await here.start()
        await here.pod(container=server("hello"))
        pod = await here.wait_until_ready()
        port = free_node_port()
        with socket.create_server(("127.0.0.1", port)):  # of another program, which ends soon
            offered = {"port": 80, "nodePort": port, "protocol": "TCP"}
            await make_service(here, "web", type="NodePort", ports=[offered])
            await set_endpoints(here, "web", [pod])
            await wait_briefly()
        assert await heard("127.0.0.1", port) == "hello"
        await here.client.delete(Service, "web", "default")
        await until(lambda: _is_refused("127.0.0.1", port), PATIENCE)


@pytest.fixture
def no_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that could not be opened is opened when it is free, or not at all."""
    monkeypatch.setattr(controller, "NODE_PORT_IN_USE", Backoff(1e6, 1e6))


def services_on(here: NodeEnv, node: str, shares: ServiceShares, third_byte: int) -> BridgedServices:
    """Another node of this process, without pods."""
    services = BridgedServices(ServiceNetwork(NodeOptions(), node, here.client, here.host, shares))
    bridge = Bridge(bridge_name(here.paths.root), IPv4Network("100.127.252.0/22"), "test")
    ensure_bridge(bridge)
    services.start_in_background(bridge, IPv4Network(f"100.127.{third_byte}.0/24"))
    return services


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    writer.close()


async def test_a_node_that_stops_leaves_its_node_ports_to_the_others(no_second_try: None) -> None:
    machine = convert(Pod, {"status": {"podIP": "127.0.0.1"}})
    async with await asyncio.start_server(greet, "127.0.0.1", 0) as endpoint, node_env() as here:
        shares = ServiceShares(set())
        nodes = [services_on(here, name, shares, byte) for name, byte in (("one", 252), ("two", 253))]
        port = free_node_port()
        offered = {"port": 80, "nodePort": port, "protocol": "TCP"}
        await make_service(here, "web", type="NodePort", ports=[offered])
        await set_endpoints(here, "web", [machine], port=endpoint.sockets[0].getsockname()[1])
        assert await heard("127.0.0.1", port) == "hello"
        await wait_briefly()
        for node in nodes:
            assert await heard("127.0.0.1", port) == "hello"
            await node.close()
        await until(lambda: _is_refused("127.0.0.1", port), PATIENCE)


async def test_a_service_gets_the_address_and_port_of_a_deleted_one(
    no_second_try: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_close = asyncio.Event()

    class SlowRelay(Relay):
        async def close(self) -> None:
            await may_close.wait()
            await super().close()

    monkeypatch.setattr(controller, "Relay", SlowRelay)
    async with node_env() as here:
        await here.start()
        await here.pod("server", container=server("hello"))
        pod = await here.wait_until_ready("server")
        port = free_node_port()
        offered = {"port": 80, "nodePort": port, "protocol": "TCP"}
        for name in ("old", "new"):
            await make_service(here, name, "10.96.0.77", type="NodePort", ports=[offered])
            await set_endpoints(here, name, [pod])
            if name == "old":
                assert await heard("127.0.0.1", port) == "hello"
                await here.client.delete(Service, name, "default")
        await wait_briefly()  # the new one finds both in use
        await here.client.delete(EndpointSlice, "old-1", "default")
        may_close.set()
        assert await heard("127.0.0.1", port) == "hello"
        await here.pod("client", container=caller("new"))
        await printed(here, await here.wait_until_ready("client"), "heard hello")


async def _is_refused(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


async def test_a_client_stays_with_its_endpoint_if_the_service_says_so() -> None:
    async with node_env() as here:
        await here.start()
        for name in ("one", "two"):
            await here.pod(name, container=server(name))
        pods = [await here.wait_until_ready(name) for name in ("one", "two")]
        port = free_node_port()
        offered = {"port": 80, "nodePort": port, "protocol": "TCP"}
        await make_service(here, "web", type="NodePort", ports=[offered], sessionAffinity="ClientIP")
        await set_endpoints(here, "web", pods)
        first = await heard("127.0.0.1", port)
        assert {await heard("127.0.0.1", port) for _ in range(8)} == {first}
        await set_endpoints(here, "web", [pod for pod in pods if pod.name != first])
        await until(lambda: _hears_other(port, first), PATIENCE)


async def _hears_other(port: int, first: str) -> bool:
    return await heard("127.0.0.1", port) != first


async def test_services_work_again_after_a_restart_and_a_removed_bridge() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod("server", container=server("hello"))
        pod = await here.wait_until_ready("server")
        await make_service(here, "web")
        await set_endpoints(here, "web", [pod])
        await here.pod("client", container=caller("web"))
        client = await here.wait_until_ready("client")
        await printed(here, client, "heard hello")
        await here.stop(drain=False)
        count = (await printed(here, client, "heard")).count("heard")
        await here.start()
        await until(lambda: _has_more(here, client, "heard hello", count + 3), PATIENCE)

        await here.delete("server")
        await here.wait_for_phase("gone", "server")
        network.remove_bridge(bridge_name(here.paths.root))
        await here.pod("server", container=server("hello again"))
        await set_endpoints(here, "web", [await here.wait_until_ready("server")])
        await here.pod("another", container=caller("web"))
        await printed(here, await here.wait_until_ready("another"), "heard hello again")
        for name in ("server", "client", "another"):
            await here.delete(name, grace=0)
        await here.stop()
        assert all_interfaces(here) == []


def all_interfaces(here: NodeEnv) -> list[str]:
    with Netlink() as machine:
        group = network.group_of(bridge_name(here.paths.root))
        return [link.name for link in machine.links() if link.group == group]


async def test_a_node_without_pods_has_no_network_for_services() -> None:
    async with node_env() as here:
        await here.start()
        await make_service(here, "web")
        await wait_briefly()
        assert all_interfaces(here) == []


async def test_a_node_that_may_not_read_services_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async with node_env() as here:
        user = RequestUser("system:node:other", ("system:authenticated",))
        client = Client(here.api.core.in_process_transport(user), component="kubelet")  # type: ignore[union-attr]
        shares = ServiceShares(set())
        services = BridgedServices(ServiceNetwork(NodeOptions(), "other", client, here.host, shares))
        bridge = Bridge(bridge_name(here.paths.root), IPv4Network("100.127.252.0/22"), "test")
        ensure_bridge(bridge)
        services.start_in_background(bridge, IPv4Network("100.127.252.0/24"))

        async def said() -> bool:
            return "cannot list resource" in caplog.text

        await until(said, PATIENCE)
        answer = await here.host.call(
            dnslib.DNSRecord.question("web.default.svc.cluster.local").send, "100.127.252.254", 53, timeout=30
        )
        assert dnslib.DNSRecord.parse(answer).header.rcode == dnslib.RCODE.SERVFAIL
        await services.close()
        await client.close()


async def test_nodes_may_read_services() -> None:
    async with world() as api:
        user = RequestUser("system:node:worker-1", ("system:nodes", "system:authenticated"))
        client = Client(api.core.in_process_transport(user), component="kubelet")
        assert await client.list(Service) is not None
        assert await client.list(EndpointSlice) is not None
        with pytest.raises(Forbidden):
            await client.list(Secret, "default")
        await client.close()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"cluster_dns": ("dns.example.org",)}, "--cluster-dns must be IP addresses"),
        ({"cluster_domain": "Cluster_local"}, "--cluster-domain must be a domain name"),
        ({"service_cluster_ip_range": "10.96.0.1/12"}, "--service-cluster-ip-range must be a range"),
    ],
)
def test_a_wrong_option_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        NodeOptions(**given)
