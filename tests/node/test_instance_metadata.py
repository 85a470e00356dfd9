"""The instance metadata of a node: IMDSv2 as botocore and pods ask for it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from botocore.utils import InstanceMetadataFetcher, InstanceMetadataRegionFetcher

from tests.node.node_env import node_env
from tests.node.test_pod_network import printed, server
from volplane import web
from volplane.base import clock
from volplane.node.instance_metadata import TOKEN_HEADER, TTL_HEADER, InstanceMetadata
from volplane.node.options import NodeOptions
from volplane.web import HttpClient

OPTIONS = NodeOptions(
    hostname_override="worker-1",
    instance_id="i-0123456789abcdef0",
    instance_type="m5.large",
    zone="us-east-1b",
    region="us-east-1",
    instance_metadata_port=20_000,
)
TOKEN = "/latest/api/token"
DATA = "/latest/meta-data"

# Perl is part of every Debian, and so of every container here.
ASK = r"""
use IO::Socket::INET; $| = 1;
sub ask {
    my $s = IO::Socket::INET->new(PeerAddr => "169.254.169.254", PeerPort => 80, Timeout => 20)
        or die "no way: $!";
    print $s join("\r\n", @_, "Host: 169.254.169.254", "Connection: close", "", "");
    my $text = join("", <$s>); $text =~ s/.*?\r\n\r\n//s; return $text;
}
my @lifetime = ("X-aws-ec2-metadata-token-ttl-seconds: 60", "Content-Length: 0");
my $token = ask("PUT /latest/api/token HTTP/1.1", @lifetime);
print "I am ", ask("GET /latest/meta-data/instance-id HTTP/1.1", "X-aws-ec2-metadata-token: $token"), "\n";
sleep 1000;
"""


@asynccontextmanager
async def listening() -> AsyncIterator[str]:
    running = await web.serve(InstanceMetadata(OPTIONS, "worker-1").handle)
    try:
        yield f"http://127.0.0.1:{running.port}/"
    finally:
        await running.close(0.0)


@asynccontextmanager
async def serving() -> AsyncIterator[HttpClient]:
    async with listening() as address:
        http = HttpClient(address)
        try:
            yield http
        finally:
            await http.close()


async def ask_token(http: HttpClient, ttl: str = "60", **headers: str) -> tuple[int, str]:
    given = [(TTL_HEADER, ttl), *((k.replace("_", "-"), v) for k, v in headers.items())]
    answer = await http.request("PUT", TOKEN, headers=given)
    return answer.status, answer.body.decode()


async def read(http: HttpClient, path: str, token: str) -> tuple[int, str]:
    answer = await http.request("GET", path, headers=[(TOKEN_HEADER, token)])
    return answer.status, answer.body.decode()


async def test_nothing_is_told_without_a_token() -> None:
    async with serving() as http:
        assert (await http.request("GET", f"{DATA}/instance-id")).status == 401
        assert (await read(http, f"{DATA}/instance-id", "1-2"))[0] == 401
        for ttl in ("", "0", "21601", "soon"):
            assert (await ask_token(http, ttl))[0] == 400
        assert (await ask_token(http, X_Forwarded_For="192.0.2.1"))[0] == 403
        assert (await http.request("GET", TOKEN)).status == 405
        status, token = await ask_token(http)
        assert status == 200
        assert await read(http, f"{DATA}/instance-id", token) == (200, OPTIONS.instance_id)
        ends, _, signature = token.partition("-")
        assert (await read(http, f"{DATA}/instance-id", f"{int(ends) + 60}-{signature}"))[0] == 401


async def test_a_token_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as http:
        _, token = await ask_token(http, "1")
        now = clock.wall()
        monkeypatch.setattr(clock, "wall", lambda: now.replace(year=now.year + 1))
        assert (await read(http, DATA, token))[0] == 401


async def test_a_directory_lists_its_names() -> None:
    async with serving() as http:
        _, token = await ask_token(http)
        assert "placement/" in (await read(http, f"{DATA}/", token))[1].splitlines()
        _, macs = await read(http, f"{DATA}/network/interfaces/macs/", token)
        (mac,) = macs.splitlines()
        assert (await read(http, f"{DATA}/network/interfaces/macs/{mac}device-number", token)) == (200, "0")
        assert (await read(http, f"{DATA}/placement/availability-zone-id", token))[1] == "use1-az2"
        _, document = await read(http, "/latest/dynamic/instance-identity/document", token)
        assert json.loads(document)["availabilityZone"] == "us-east-1b"
        for missing in (f"{DATA}/iam/security-credentials/", f"{DATA}/outpost-arn", "/1.0/meta-data"):
            assert (await read(http, missing, token))[0] == 404, missing


async def test_botocore_finds_its_region_and_no_credentials() -> None:
    async with listening() as address:
        given: dict[str, Any] = {"base_url": address, "timeout": 20, "num_attempts": 1}

        def use_botocore() -> tuple[Any, Any]:
            region = InstanceMetadataRegionFetcher(**given).retrieve_region()
            return region, InstanceMetadataFetcher(**given).retrieve_iam_role_credentials()

        assert await asyncio.to_thread(use_botocore) == ("us-east-1", {})


def test_the_port_needs_an_instance() -> None:
    with pytest.raises(ValueError, match="--instance-metadata-port needs --instance-id and --zone"):
        NodeOptions(instance_metadata_port=20_000)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@pytest.mark.root
async def test_a_pod_finds_it_at_its_address_and_may_have_port_80_itself() -> None:
    async with node_env() as here:
        port = free_port()
        await here.start(instance_metadata_port=port)
        await here.pod("web", container=server("mine", port=80))
        await here.pod("asks", container={"name": "main", "image": "x", "command": ["perl", "-e", ASK]})
        assert "I am i-0123456789\n" in await printed(here, await here.wait_until_ready("asks"), "I am")
        web_pod = await here.wait_until_ready("web")
        reader, writer = await asyncio.open_connection(web_pod.status.pod_ip, 80)
        assert await reader.read() == b"mine"
        writer.close()

        # A node that starts again offers it to the pods that have gone on running, too.
        await here.stop(drain=False)
        await here.start(instance_metadata_port=port)
        await here.wait_until_ready("asks")
        await here.pod("later", container={"name": "main", "image": "x", "command": ["perl", "-e", ASK]})
        await printed(here, await here.wait_until_ready("later"), "I am i-0123456789")


@pytest.mark.root
async def test_a_container_in_the_machines_network_finds_it_by_the_variable_of_the_sdks() -> None:
    async with node_env() as here:
        port = free_port()
        await here.start(instance_metadata_port=port)
        command = ["sh", "-c", 'echo "at $AWS_EC2_METADATA_SERVICE_ENDPOINT."; sleep 1000']
        container = {"name": "main", "image": "x", "command": command}
        await here.pod("host", container=container, hostNetwork=True)
        pod = await here.wait_until_ready("host")
        assert f"at http://127.0.0.1:{port}.\n" in await printed(here, pod, "at ")
        await here.pod("own", container=container)
        assert "at .\n" in await printed(here, await here.wait_until_ready("own"), "at ")
