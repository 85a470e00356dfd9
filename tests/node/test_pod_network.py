"""Pods in networks of their own: one port for all, probes, ways in and out, restarts, and nothing left."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tests.loops.inprocess import until
from tests.node.node_env import NODE, NodeEnv, node_env, path_exists
from tests.node.test_pods import log_of, shell
from volplane.api.core import Node, Pod
from volplane.csi.health import METHOD, GrpcHealthStatus, HealthCheckError, check
from volplane.host import network
from volplane.host.netlink import Netlink
from volplane.node.network.interface import StreamPair
from volplane.node.network.pod_network import bridge_name

pytestmark = pytest.mark.root
PATIENCE = 60.0

# Perl is part of every Debian, and so of every container here.
_SERVE = r"""
use IO::Socket::INET; $SIG{PIPE} = "IGNORE";
my $s = IO::Socket::INET->new(LocalAddr => $ARGV[0], LocalPort => $ARGV[1], Listen => 20, ReuseAddr => 1)
    or die "cannot listen: $!";
while (my $c = $s->accept) {
    $c->recv(my $request, 4096) if $ARGV[3];
    print $c "HTTP/1.1 200 OK\r\nContent-Length: " . length($ARGV[2]) . "\r\n\r\n" if $ARGV[3];
    print $c $ARGV[2];
    close $c;
}
"""


def server(words: str, *, port: int = 5432, address: str = "0.0.0.0", http: bool = False, **more: Any) -> Any:
    command = ["perl", "-e", _SERVE, address, str(port), words, "http" if http else ""]
    return {"name": "main", "image": "x", "command": command, **more}


async def heard(pod: Pod | str, port: int = 5432) -> str:
    """What it says; the server may take a moment to be there, and the way to it as well."""
    address = pod if isinstance(pod, str) else pod.status.pod_ip
    return await _heard(lambda: asyncio.open_connection(address, port))


async def heard_inside(here: NodeEnv, pod: Pod, port: int) -> str:
    """As port-forward reaches it."""
    assert here.role is not None
    network = here.role.network
    return await _heard(lambda: network.dial(pod.uid, port))


async def _heard(dial: Callable[[], Awaitable[StreamPair]]) -> str:
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(2):  # a packet that found no way is not sent again at once
                    reader, writer = await dial()
                try:
                    if words := (await reader.read()).decode():
                        return words
                finally:
                    writer.close()
            await asyncio.sleep(0.05)


async def printed(here: NodeEnv, pod: Pod, part: str, container: str = "main", attempt: int = 0) -> str:
    async def found() -> str:
        with suppress(FileNotFoundError):
            text = log_of(here, pod, container, attempt)
            return text if part in text else ""
        return ""

    return str(await until(found, PATIENCE))


def interfaces(here: NodeEnv) -> list[str]:
    """The bridge, and those of pods; not the one by which pods reach Services."""
    with Netlink() as machine:
        group = network.group_of(bridge_name(here.paths.root))
        return [link.name for link in machine.links() if link.group == group and not _of_services(link.name)]


def _of_services(name: str) -> bool:
    try:
        return Path(f"/sys/class/net/{name}/ifalias").read_text().rstrip().endswith(" services")
    except OSError:  # it is gone
        return False


async def without_cables(here: NodeEnv) -> None:
    """The kernel takes a namespace down a moment after its last process."""

    async def gone() -> bool:
        return [n for n in interfaces(here) if n != bridge_name(here.paths.root)] == []

    await until(gone, PATIENCE)


async def test_two_pods_have_the_same_port_and_both_answer() -> None:
    async with node_env() as here:
        await here.start()
        for name in ("one", "two"):
            await here.pod(name, container=server(f"I am {name}"))
        one, two = await here.wait_until_ready("one"), await here.wait_until_ready("two")
        assert one.status.pod_ip != two.status.pod_ip
        assert one.status.host_ip == "127.0.0.1"
        assert [a.ip for a in one.status.pod_ips] == [one.status.pod_ip]
        for pod in (one, two):
            assert await heard(pod) == f"I am {pod.name}"
            assert await heard_inside(here, pod, 5432) == f"I am {pod.name}"
        node = await here.client.get(Node, NODE)
        assert node.spec.pod_cidr
        assert node.spec.pod_cidrs == (node.spec.pod_cidr,)
        for name in ("one", "two"):
            await here.delete(name)
            await here.wait_for_phase("gone", name)
        await without_cables(here)
        await here.stop()
        assert interfaces(here) == []


async def test_port_forward_reaches_servers_that_listen_on_the_pods_loopback_only() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(container=server("only for you", address="127.0.0.1"))
        pod = await here.wait_until_ready()
        assert await heard_inside(here, pod, 5432) == "only for you"
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(pod.status.pod_ip, 5432)


async def test_what_a_container_sees_of_its_network() -> None:
    async with node_env() as here:
        await here.start()
        env = [
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "IPS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIPs"}}},
            {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        ]
        script = (
            "echo $IP $IPS $NODE_IP; ls /sys/class/net; cat /etc/hosts; cut -d: -f1 /proc/net/dev; echo end"
        )
        await here.pod(container=shell(f"{script}; exec sleep 1000", env=env))
        pod = await here.wait_until_ready()
        lines = (await printed(here, pod, "end\n")).splitlines()
        address = pod.status.pod_ip
        assert lines[0] == f"{address} {address} 127.0.0.1"
        assert lines[1:3] == ["eth0", "lo"]
        assert f"{address}\tapp" in lines
        assert {line.strip() for line in lines[-4:-1]} >= {"eth0", "lo"}


async def test_the_api_server_is_where_the_variables_say() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"the API server\n")
        writer.close()

    script = (
        "use IO::Socket::INET; my $s = IO::Socket::INET->new("
        '"$ENV{KUBERNETES_SERVICE_HOST}:$ENV{KUBERNETES_SERVICE_PORT}") or die "no: $!";'
        "print <$s>; $| = 1; print qq(end\\n); sleep 1000;"
    )
    async with await asyncio.start_server(greet, "127.0.0.1", 0) as api, node_env() as here:
        port = api.sockets[0].getsockname()[1]
        await here.start(cluster_host="127.0.0.1", cluster_port=port)
        await here.pod(container={"image": "x", "command": ["perl", "-e", script]})
        pod = await here.wait_until_ready()
        assert "the API server" in await printed(here, pod, "end")


async def test_the_disk_service_has_the_same_address_in_pods() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"the disk service\n")
        writer.close()

    script = (
        'use IO::Socket::INET; my $s = IO::Socket::INET->new("127.0.0.1:$ARGV[0]") or die "no: $!";'
        "print <$s>; $| = 1; print qq(end\\n); sleep 1000;"
    )
    async with await asyncio.start_server(greet, "127.0.0.1", 0) as service, node_env() as here:
        port = service.sockets[0].getsockname()[1]
        await here.start(disk_service_port=port)
        await here.pod(container={"image": "x", "command": ["perl", "-e", script, str(port)]})
        pod = await here.wait_until_ready()
        assert "the disk service" in await printed(here, pod, "end")


async def test_a_pod_may_ask_for_the_machines_network() -> None:
    async with node_env() as here:
        await here.start()
        script = "readlink /proc/self/ns/net; echo end; exec sleep 1000"
        await here.pod("inside", container=shell(script), hostNetwork=True)
        await here.pod("apart", container=shell(script))
        inside, apart = await here.wait_until_ready("inside"), await here.wait_until_ready("apart")
        own = os.readlink("/proc/self/ns/net")
        assert own in await printed(here, inside, "end")
        assert own not in await printed(here, apart, "end")
        assert inside.status.pod_ip == inside.status.host_ip == "127.0.0.1"
        assert apart.status.pod_ip != "127.0.0.1"


async def test_all_pods_share_the_machines_network_if_the_node_is_told_so() -> None:
    async with node_env() as here:
        await here.start(pod_network="host")
        await here.pod(container=shell("readlink /proc/self/ns/net; echo end; exec sleep 1000"))
        pod = await here.wait_until_ready()
        assert os.readlink("/proc/self/ns/net") in await printed(here, pod, "end")
        assert pod.status.pod_ip == "127.0.0.1"
        assert interfaces(here) == []


async def test_containers_of_a_pod_share_its_network() -> None:
    async with node_env() as here:
        await here.start()
        ask = (
            "use IO::Socket::INET; my $s; "
            "until ($s = IO::Socket::INET->new('127.0.0.1:5432')) { select undef, undef, undef, 0.1 } "
            "$| = 1; print <$s>; sleep 1000"
        )
        beside = {"name": "beside", "image": "x", "command": ["perl", "-e", ask], "restartPolicy": "Always"}
        await here.pod(container=server("hello neighbour\n"), initContainers=[beside])
        pod = await here.wait_until_ready()
        await printed(here, pod, "hello neighbour", container="beside")


async def test_http_and_tcp_probes_go_to_the_pods_own_address() -> None:
    async with node_env() as here:
        await here.start()
        probes: dict[str, Any] = {
            "startupProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 60},
            "readinessProbe": {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 1},
            "ports": [{"name": "web", "containerPort": 8080}],
        }
        for name in ("one", "two"):
            await here.pod(name, container=server("fine", port=8080, http=True, **probes))
        for name in ("one", "two"):
            await here.wait_until_ready(name)


async def test_a_failed_probe_names_the_pods_address() -> None:
    async with node_env() as here:
        await here.start()
        probe = {"tcpSocket": {"port": 81}, "periodSeconds": 1}
        await here.pod(container=shell("exec sleep 1000", readinessProbe=probe))

        async def placed() -> str:
            return str((await here.client.get(Pod, "app", "default")).status.pod_ip)

        address = await until(placed, PATIENCE)
        await here.wait_for_event(
            f"Readiness probe failed: dial tcp {address}:81: connect: connection refused"
        )


# --- gRPC


class Answering(grpc.GenericRpcHandler):
    def __init__(self, answers: dict[str, int]) -> None:
        self.answers = answers

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method != METHOD:
            return None

        async def answer(request: bytes, context: Any) -> bytes:
            return bytes([8, self.answers[request[2:].decode()]])

        return grpc.unary_unary_rpc_method_handler(answer)


async def health_server(*handlers: grpc.GenericRpcHandler) -> tuple[grpc.aio.Server, str]:
    made = grpc.aio.server(handlers=handlers)
    port = made.add_insecure_port("127.0.0.1:0")
    await made.start()
    return made, f"127.0.0.1:{port}"


async def test_a_server_is_asked_for_its_health() -> None:
    made, address = await health_server(Answering({"": 1, "disk": 2}))
    try:
        assert await check(address, "", PATIENCE) is GrpcHealthStatus.SERVING
        assert await check(address, "disk", PATIENCE) is GrpcHealthStatus.NOT_SERVING
    finally:
        await made.stop(0)


async def test_a_server_without_health_says_so() -> None:
    made, address = await health_server()
    try:
        with pytest.raises(HealthCheckError, match="does not implement the grpc health protocol"):
            await check(address, "", PATIENCE)
    finally:
        await made.stop(0)


async def test_nobody_there_is_no_answer() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(
            HealthCheckError, match=f'timeout: failed to connect service "{address}" within 0.2s'
        ):
            await check(address, "", 0.2)


async def test_a_grpc_probe_makes_a_pod_ready() -> None:
    made, address = await health_server(answering := Answering({"": 2, "db": 2}))
    port = int(address.rpartition(":")[2])
    try:
        async with node_env() as here:
            await here.start()
            probe = {"grpc": {"port": port, "service": "db"}, "periodSeconds": 1, "timeoutSeconds": 30}
            await here.pod(container={"readinessProbe": probe})
            await here.wait_for_event(
                'Readiness probe failed: service unhealthy (responded with "NOT_SERVING")'
            )
            answering.answers["db"] = 1
            await here.wait_until_ready()
    finally:
        await made.stop(0)


# --- host ports


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_a_host_port_leads_into_the_pod_as_long_as_it_is_there() -> None:
    async with node_env() as here:
        await here.start()
        port = free_port()
        await here.pod(container=server("hello", ports=[{"containerPort": 5432, "hostPort": port}]))
        await here.wait_until_ready()
        assert await heard("127.0.0.1", port) == "hello"
        await here.delete()
        await here.wait_for_phase("gone")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_a_host_port_that_is_taken_is_waited_for() -> None:
    async with node_env() as here:
        await here.start()
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            await here.pod(container=server("hello", ports=[{"containerPort": 5432, "hostPort": port}]))
            await here.wait_for_event(
                f"Failed to create pod sandbox: hostPort {port} of 127.0.0.1: Address already"
            )
            assert await here.phase() == "Pending"
        await here.wait_until_ready()
        assert await heard("127.0.0.1", port) == "hello"


async def test_a_pod_whose_host_port_another_pod_has_fails() -> None:
    async with node_env() as here:
        await here.start()
        port = free_port()
        ports = [{"containerPort": 5432, "hostPort": port}]
        await here.pod("first", container=server("first", ports=ports))
        await here.wait_until_ready("first")
        await here.pod("second", container=server("second", ports=ports))
        await here.wait_for_phase("Failed", "second")
        failed = await here.client.get(Pod, "second", "default")
        assert (failed.status.reason, failed.status.message) == (
            "NodePorts",
            "Pod was rejected: Predicate NodePorts failed: node(s) didn't have free ports for the requested "
            "pod ports",
        )
        # After a restart the pod that runs still has its port.
        await here.stop(drain=False)
        await here.start()
        await here.pod("third", container=server("third", ports=ports))
        await here.wait_for_phase("Failed", "third")
        await here.pod("other", container=server("other", ports=[{**ports[0], "protocol": "UDP"}]))
        await here.wait_for_event(f"hostPort {port}: only TCP is supported, not UDP")
        await here.delete("first")
        await here.wait_for_phase("gone", "first")
        await here.pod("fourth", container=server("fourth", ports=ports))
        await here.wait_until_ready("fourth")
        assert await heard("127.0.0.1", port) == "fourth"


# --- restarts


async def test_a_running_pod_keeps_its_network_when_the_node_starts_again() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(container=server("still here"))
        before = await here.wait_until_ready()
        assert await heard(before) == "still here"
        await here.stop(drain=False)
        assert await heard(before) == "still here"
        await here.start()
        after = await here.wait_until_ready()
        assert after.status.pod_ip == before.status.pod_ip
        assert after.status.container_statuses[0].restart_count == 0
        assert await heard(after) == "still here"
        assert await heard_inside(here, after, 5432) == "still here"


async def test_a_pod_that_is_started_anew_has_the_address_that_it_had() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(container=server("hello"))
        before = await here.wait_until_ready()
        await here.stop()
        assert interfaces(here) == []
        await here.start()

        async def plugged() -> bool:
            return len(interfaces(here)) == 2

        await until(plugged, PATIENCE)  # until then its address leads out of the machine
        assert await heard(before) == "hello"
        assert (await here.wait_until_ready()).status.pod_ip == before.status.pod_ip


async def test_a_container_that_is_restarted_stays_in_its_pods_network() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(container=shell("readlink /proc/self/ns/net; sleep 0.1"), restartPolicy="Always")

        async def again() -> Pod | None:
            pod = await here.client.get(Pod, "app", "default")
            done = pod.status.container_statuses and pod.status.container_statuses[0].restart_count
            return pod if done else None

        pod = await until(again, PATIENCE)
        first = await printed(here, pod, "net:")
        assert first == await printed(here, pod, "net:", attempt=1)


async def test_what_belongs_to_nobody_any_more_is_removed() -> None:
    """The pod was deleted by force while the node was away."""
    async with node_env() as here:
        await here.start()
        await here.pod(container=server("hello"))
        pod = await here.wait_until_ready()
        assert await heard(pod) == "hello"
        await here.stop(drain=False)
        await here.delete(grace=0)
        assert len(interfaces(here)) == 2
        await here.start()
        await without_cables(here)

        async def removed() -> bool:
            return not path_exists(here.paths.real(here.paths.pod(pod.uid)))

        await until(removed, PATIENCE)


async def test_a_bridge_that_somebody_removes_comes_back_with_the_next_pod() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod("one", container=server("one"))
        await here.wait_until_ready("one")
        network.remove_bridge(bridge_name(here.paths.root))
        await here.pod("two", container=server("two"))
        assert await heard(await here.wait_until_ready("two")) == "two"


async def test_a_machine_without_such_networks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(flags: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("volplane.host.syscalls.unshare", refuse)
    async with node_env() as here:
        await here.start()
        await here.pod(container=shell("readlink /proc/self/ns/net; echo end; exec sleep 1000"))
        pod = await here.wait_until_ready()
        assert os.readlink("/proc/self/ns/net") in await printed(here, pod, "end")
        assert pod.status.pod_ip == "127.0.0.1"
        await here.wait_for_event("this machine does not support pod networks (Operation not permitted)")
