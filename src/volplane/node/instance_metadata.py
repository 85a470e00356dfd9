"""The instance metadata service of a node: IMDSv2, which drivers and SDKs of AWS ask where they run.

Every request needs a session token, as on an instance that requires IMDSv2. There are no credentials in it:
any pod can ask. A token is a time and its signature, so that nothing is stored; a client gets a new one when
the node has restarted.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import platform
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from volplane.base import clock
from volplane.node.options import NodeOptions
from volplane.rules import instances
from volplane.rules.zones import region_of, zone_id
from volplane.web import Request, Response

ADDRESS, PORT = "169.254.169.254", 80
VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"  # where SDKs look for another address
VERSIONS = ("2021-07-15", "latest")
TTL_HEADER, TOKEN_HEADER = "X-aws-ec2-metadata-token-ttl-seconds", "X-aws-ec2-metadata-token"
LONGEST_TTL = 21_600  # seconds

Tree: TypeAlias = "Mapping[str, Tree | str]"


class InstanceMetadata:
    """`handle` answers one request."""

    def __init__(self, settings: NodeOptions, name: str) -> None:
        self._tree = build_tree(settings, name)
        self._key = os.urandom(32)

    async def handle(self, request: Request) -> Response:
        path = request.path.strip("/")
        if path == "latest/api/token":
            return self._give_token(request)
        if request.method not in ("GET", "HEAD"):
            return _answer(405, "Method Not Allowed")
        if not self._is_valid(request.headers.get(TOKEN_HEADER) or ""):
            return _answer(401, "Unauthorized")
        found = find(self._tree, path)
        return _answer(404, "Not Found") if found is None else _answer(200, found)

    def _give_token(self, request: Request) -> Response:
        if request.method != "PUT":
            return _answer(405, "Method Not Allowed")
        if request.headers.get("X-Forwarded-For"):
            return _answer(403, "Forbidden")
        ttl = request.headers.get(TTL_HEADER) or ""
        if not (ttl.isascii() and ttl.isdecimal() and 1 <= int(ttl) <= LONGEST_TTL):
            return _answer(400, f"{TTL_HEADER} must be a number of seconds from 1 to {LONGEST_TTL}")
        ends = str(int(clock.wall().timestamp()) + int(ttl))
        return _answer(200, f"{ends}-{self._sign(ends)}", (TTL_HEADER, ttl))

    def _is_valid(self, token: str) -> bool:
        ends, _, signature = token.partition("-")
        if not hmac.compare_digest(signature.encode(), self._sign(ends).encode()):
            return False
        return int(ends) > clock.wall().timestamp()

    def _sign(self, ends: str) -> str:
        return hmac.new(self._key, ends.encode(), hashlib.sha256).hexdigest()


def _answer(status: int, text: str, *headers: tuple[str, str]) -> Response:
    head = [("Content-Type", "text/plain"), ("Server", "EC2ws"), *headers]
    return Response(status=status, headers=head, body=text.encode())


def find(tree: Tree, path: str) -> str | None:
    """The text at a path, or the names of a directory, one in each line."""
    if not path:
        return "\n".join(VERSIONS)
    version, *names = path.split("/")
    if version not in VERSIONS:
        return None
    here: Tree | str = tree
    for name in names:
        if isinstance(here, str) or name not in here:
            return None
        here = here[name]
    if isinstance(here, str):
        return here
    return "\n".join(f"{name}/" if isinstance(below, Mapping) else name for name, below in here.items())


def build_tree(settings: NodeOptions, name: str) -> Tree:
    instance, zone = settings.instance_id, settings.zone
    region = settings.region or region_of(zone)
    mac = instances.mac_address(instance)
    interface: Tree = {
        "device-number": "0",
        "interface-id": instances.interface_id(instance),
        "local-hostname": name,
        "local-ipv4s": settings.node_ip,
        "mac": mac,
        "owner-id": instances.OWNER,
    }
    meta_data: Tree = {
        "ami-launch-index": "0",
        "block-device-mapping": {"ami": instances.ROOT_DEVICE, "root": instances.ROOT_DEVICE},
        "hostname": name,
        "instance-action": "none",
        "instance-id": instance,
        "instance-life-cycle": "on-demand",
        "instance-type": settings.instance_type,
        "local-hostname": name,
        "local-ipv4": settings.node_ip,
        "mac": mac,
        "network": {"interfaces": {"macs": {mac: interface}}},
        "placement": {
            "availability-zone": zone,
            "availability-zone-id": zone_id(zone),
            "region": region,
        },
        "services": {"domain": "amazonaws.com", "partition": "aws"},
    }
    document = {
        "accountId": instances.OWNER,
        "architecture": {"aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "availabilityZone": zone,
        "instanceId": instance,
        "instanceType": settings.instance_type,
        "privateIp": settings.node_ip,
        "region": region,
        "version": "2017-09-30",
    }
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    return {"dynamic": {"instance-identity": {"document": text}}, "meta-data": meta_data}
