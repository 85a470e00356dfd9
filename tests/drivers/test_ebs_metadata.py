"""A node of the EBS driver finds out where it is."""

from __future__ import annotations

import asyncio

import pytest

from volplane.api.core import Node, NodeSpec
from volplane.api.meta import ObjectMeta
from volplane.drivers.ebs import metadata
from volplane.drivers.ebs.metadata import InstanceLocation
from volplane.web import Request, Response, serve

ZONE = {"topology.kubernetes.io/zone": "us-east-1b"}


class Imds:
    """Instance metadata, version 2: answers cost a token that is asked for first."""

    def __init__(self) -> None:
        self.facts = {"instance-id": "i-0abc", "placement/availability-zone": "us-east-1a"}
        self.asked: list[str] = []

    async def __call__(self, request: Request) -> Response:
        self.asked.append(f"{request.method} {request.path}")
        if request.path == "/latest/api/token":
            wanted = request.method == "PUT" and request.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            return Response(body=b"token") if wanted else Response(status=400)
        if request.headers.get("X-aws-ec2-metadata-token") != "token":
            return Response(status=401)
        fact = self.facts.get(request.path.removeprefix("/latest/meta-data/"))
        return Response(body=fact.encode()) if fact else Response(status=404)


async def test_the_instance_tells() -> None:
    imds = Imds()
    server = await serve(imds)
    try:
        address = f"http://127.0.0.1:{server.port}"
        assert await metadata.from_instance(address) == InstanceLocation("i-0abc", "us-east-1a")
        assert imds.asked[0] == "PUT /latest/api/token"
        del imds.facts["placement/availability-zone"]
        assert await metadata.from_instance(address) is None
    finally:
        await server.close(0)


async def test_where_nobody_answers_there_are_no_metadata() -> None:
    listener = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    assert await metadata.from_instance(f"http://127.0.0.1:{port}") is None
    listener.close()
    await listener.wait_closed()
    assert await metadata.from_instance(f"http://127.0.0.1:{port}") is None


@pytest.mark.parametrize(
    ("provider", "labels", "expected"),
    [
        ("aws:///us-east-1a/i-0abc", {}, InstanceLocation("i-0abc", "us-east-1a")),
        ("aws:///us-east-1a/fargate/i-0abc", {}, InstanceLocation("i-0abc", "us-east-1a")),
        ("aws:////i-0abc", ZONE, InstanceLocation("i-0abc", "us-east-1b")),
        ("aws:////i-0abc", {}, None),
        ("kind://docker/kind/worker", ZONE, None),
        ("", ZONE, None),
    ],
)
def test_the_node_tells(provider: str, labels: dict[str, str], expected: InstanceLocation | None) -> None:
    node = Node(metadata=ObjectMeta(name="n", labels=labels), spec=NodeSpec(provider_id=provider))
    assert metadata.from_node(node) == expected
