"""The DNS server, asked by dig, and the machine's server behind it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from ipaddress import IPv4Network
from typing import Any

import dnslib
import pytest
from dnslib.server import BaseResolver, DNSHandler, DNSLogger, DNSServer

from tests.node.services.names import FixedNames, small_shop
from tests.support.peers import path
from volplane.node.network.resolv_conf import ResolvConf
from volplane.node.services.dns import server as dns_server
from volplane.node.services.dns.forwarder import Forwarder
from volplane.node.services.dns.records import DnsZone
from volplane.node.services.dns.server import DnsServer, NamesUnavailable

ZONE = DnsZone(own_ranges=(IPv4Network("10.96.0.0/12"),))
SVC = "shop.svc.cluster.local"
RESOLVERS_WAIT = 5.0  # seconds that the C library waits for a server


async def synced() -> None:
    pass


async def never() -> None:
    await asyncio.Event().wait()


async def refused() -> None:
    raise NamesUnavailable


@asynccontextmanager
async def serving(
    names: FixedNames | None = None, forwarder: Forwarder | None = None, wait_synced: Any = synced
) -> AsyncIterator[int]:
    """The port of a server on this machine's loopback."""
    streams = socket.create_server(("127.0.0.1", 0))
    port: int = streams.getsockname()[1]
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", port))
    datagrams.setblocking(False)
    nobody = forwarder or Forwarder(lambda: ResolvConf())
    server = DnsServer(ZONE, names or small_shop(), nobody, wait_synced)
    await server.start(datagrams, streams)
    try:
        yield port
    finally:
        await server.close()


async def dig(port: int, *words: str) -> str:
    asked = [path("dig"), "@127.0.0.1", "-p", str(port), "+tries=1", "+timeout=20", "+noall", *words]
    done = await asyncio.create_subprocess_exec(*asked, stdout=asyncio.subprocess.PIPE)
    output, _ = await done.communicate()
    return " ".join(output.decode().split())


@pytest.mark.peer("dig")
@pytest.mark.parametrize("how", ["+notcp", "+tcp"])
async def test_dig_finds_services_and_pods(how: str) -> None:
    async with serving() as port:
        shown = await dig(port, how, "+answer", f"Web.{SVC}", "A", f"db-1.db.{SVC}", "A")
        assert shown == f"Web.{SVC}. 5 IN A 10.96.0.7 db-1.db.{SVC}. 5 IN A 10.1.0.2"
        ports = await dig(port, how, "+answer", "+additional", f"_http._tcp.web.{SVC}", "SRV")
        assert ports == f"_http._tcp.web.{SVC}. 5 IN SRV 0 100 80 web.{SVC}. web.{SVC}. 5 IN A 10.96.0.7"
        names = await dig(port, how, "+answer", "-x", "10.96.0.7")
        assert names.endswith(f"PTR web.{SVC}.")
        assert "CNAME db.example.com." in await dig(port, how, "+answer", f"elsewhere.{SVC}")
        assert '"1.1.0"' in await dig(port, how, "+answer", "dns-version.cluster.local", "TXT")
        gone = await dig(port, how, "+comments", "+authority", f"none.{SVC}", "A")
        assert "status: NXDOMAIN" in gone
        assert "SOA ns.dns.cluster.local." in gone
        assert "flags: qr aa rd ra;" in gone
        empty = await dig(port, how, "+comments", f"web.{SVC}", "AAAA")
        assert "status: NOERROR" in empty
        assert "ANSWER: 0" in empty


@pytest.mark.peer("dig")
async def test_an_answer_that_is_too_large_is_asked_for_again_over_tcp() -> None:
    async with serving(small_shop(databases=100)) as port:
        shortened = await dig(port, "+ignore", "+comments", f"db.{SVC}", "A")
        assert "flags: qr aa tc rd ra" in shortened
        assert "QUERY: 1, ANSWER: 0" in shortened
        assert (await dig(port, "+answer", f"db.{SVC}", "A")).count(" IN A ") == 101
        without_edns = await dig(port, "+noedns", "+ignore", "+answer", f"_sql._tcp.db.{SVC}", "SRV")
        assert without_edns == ""


@pytest.mark.peer("dig")
async def test_names_are_not_guessed_before_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns_server, "SYNC_TIMEOUT", 0.1)
    for waiting in (never, refused):
        async with serving(wait_synced=waiting) as port:
            assert "status: SERVFAIL" in await dig(port, "+comments", f"web.{SVC}")


class ShortHandler(DNSHandler):  # type: ignore[misc]
    udplen = 512


class Upstream(BaseResolver):  # type: ignore[misc]
    """What the machine's own server answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def resolve(self, request: Any, handler: Any) -> Any:
        self.asked.append(f"{handler.protocol} {request.q.qname}")
        reply = request.reply()
        for last in range(60 if "many" in str(request.q.qname) else 1):
            reply.add_answer(*dnslib.RR.fromZone(f"{request.q.qname} 60 A 192.0.2.{last}"))
        return reply


@asynccontextmanager
async def upstream() -> AsyncIterator[tuple[Upstream, int]]:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port: int = free.getsockname()[1]
    resolver = Upstream()
    quiet = DNSLogger("-request,-reply,-truncated")
    servers = [
        DNSServer(resolver, "127.0.0.1", port, tcp=tcp, handler=ShortHandler, logger=quiet)
        for tcp in (False, True)
    ]
    for server in servers:
        server.start_thread()
    try:
        yield resolver, port
    finally:
        for server in servers:
            server.stop()
            server.server.server_close()
            server.thread.join()


@pytest.mark.peer("dig")
async def test_other_names_are_asked_of_the_machines_servers() -> None:
    async with upstream() as (machine, port):
        forwarder = Forwarder(lambda: ResolvConf(("127.0.0.1",)), port)
        async with serving(forwarder=forwarder) as own:
            assert await dig(own, "+answer", "example.com") == "example.com. 60 IN A 192.0.2.0"
            assert (await dig(own, "+answer", "many.example.com")).count(" IN A ") == 60
            assert "NXDOMAIN" in await dig(own, "+comments", f"none.{SVC}")
        assert machine.asked == ["udp example.com.", "udp many.example.com.", "tcp many.example.com."]


@pytest.mark.peer("dig")
async def test_a_server_that_does_not_answer_is_followed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async with upstream() as (_, port):
        forwarder = Forwarder(lambda: ResolvConf(("127.0.0.2", "127.0.0.1")), port)
        async with serving(forwarder=forwarder) as own:
            assert await dig(own, "+answer", "example.com") == "example.com. 60 IN A 192.0.2.0"
    for servers in ((), ("127.0.0.2",)):
        nobody = Forwarder(lambda servers=servers: ResolvConf(servers), port)  # type: ignore[misc]
        async with serving(forwarder=nobody) as own:
            assert "status: SERVFAIL" in await dig(own, "+comments", "example.com")


@contextmanager
def silent_servers(*addresses: str) -> Iterator[int]:
    """The port of servers that take questions and answer nothing."""
    with ExitStack() as stack:
        port = 0
        for address in addresses:
            made = stack.enter_context(closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
            made.bind((address, port))
            port = made.getsockname()[1]
        yield port


@pytest.mark.virtual
@pytest.mark.parametrize("count", [1, 2, 3])
async def test_a_client_learns_in_time_that_no_server_answers(count: int) -> None:
    servers = tuple(f"127.0.0.{number}" for number in range(2, 2 + count))
    with silent_servers(*servers) as port:
        server = DnsServer(ZONE, small_shop(), Forwarder(lambda: ResolvConf(servers), port), synced)
        async with asyncio.timeout(RESOLVERS_WAIT):
            reply = await server.answer(dnslib.DNSRecord.question("example.com").pack(), tcp=False)
        assert dnslib.DNSRecord.parse(reply).header.rcode == dnslib.RCODE.SERVFAIL
        await server.close()


@asynccontextmanager
async def refusing(address: str, port: int, rcode: int) -> AsyncIterator[None]:
    """A server that answers every question with this code."""

    class Refusing(asyncio.DatagramProtocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, addr: Any) -> None:
            reply = dnslib.DNSRecord.parse(data).reply()
            reply.header.rcode = rcode
            self.transport.sendto(reply.pack(), addr)

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Refusing, local_addr=(address, port))
    try:
        yield
    finally:
        transport.close()


@pytest.mark.peer("dig")
@pytest.mark.parametrize("code", ["SERVFAIL", "NOTIMP", "REFUSED"])
async def test_a_server_that_cannot_answer_is_followed_by_the_next(code: str) -> None:
    async with upstream() as (_, port), refusing("127.0.0.2", port, getattr(dnslib.RCODE, code)):
        for servers, expected in (("127.0.0.2", "127.0.0.1"), "NOERROR"), (("127.0.0.2",), code):
            forwarder = Forwarder(lambda servers=servers: ResolvConf(servers), port)  # type: ignore[misc]
            async with serving(forwarder=forwarder) as own:
                assert f"status: {expected}" in await dig(own, "+comments", "example.com")


@pytest.mark.virtual
async def test_a_connection_that_was_idle_gets_its_answer() -> None:
    with closing(socket.create_server(("127.0.0.2", 0))) as silent:
        forwarder = Forwarder(lambda: ResolvConf(("127.0.0.2",)), silent.getsockname()[1])
        async with serving(forwarder=forwarder) as own:
            reader, writer = await asyncio.open_connection("127.0.0.1", own)
            await asyncio.sleep(dns_server.IDLE_TIMEOUT - 1)
            question = dnslib.DNSRecord.question("example.com").pack()
            writer.write(len(question).to_bytes(2) + question)
            reply = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
            assert dnslib.DNSRecord.parse(reply).header.rcode == dnslib.RCODE.SERVFAIL
            writer.close()


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (b"", None),
        (b"\0" * 11, None),
        (b"ab\x81\0" + bytes(8), None),  # a reply
        (b"ab\1\0\0\1" + bytes(6), 1),  # a question that is not there
        (b"ab\1\0\0\1" + bytes(6) + b"\xc0\x0c\0\1\0\1", 1),  # a name that points at itself
        (b"ab\1\0\0\1" + bytes(6) + b"\x3fx", 1),
        (b"ab\1\0\0\0" + bytes(6), 1),
        (b"ab\x28\0\0\1" + bytes(6) + b"\1x\0\0\1\0\1", 4),  # an update
        (b"ab\1\0\0\1" + bytes(6) + b"\1x\0\0\1\0\3", 5),  # of class CHAOS
    ],
)
async def test_a_packet_that_is_no_question_harms_nobody(packet: bytes, code: int | None) -> None:
    server = DnsServer(ZONE, small_shop(), Forwarder(lambda: ResolvConf()), synced)
    reply = await server.answer(packet, tcp=False)
    if code is None:
        assert reply == b""
    else:
        assert reply[:2] == b"ab"
        assert (reply[2] & 0x80, reply[3] & 0xF) == (0x80, code)
    await server.close()


async def test_a_client_that_asks_too_often_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns_server, "QUESTIONS_PER_SECOND", 3)
    monkeypatch.setattr("volplane.base.clock.now", lambda: 7.5)
    question = dnslib.DNSRecord.question(f"web.{SVC}").pack()
    async with serving() as port:
        loop = asyncio.get_running_loop()
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as client:
            client.setblocking(False)
            client.connect(("127.0.0.1", port))
            for _ in range(8):
                await loop.sock_sendall(client, question)
            for _ in range(3):
                await loop.sock_recv(client, 4096)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await loop.sock_recv(client, 4096)
