"""The EBS driver: a block device per volume, attached to one node at a time, through the EC2 API.

`run_controller` and `run_node` serve a socket until they are cancelled. The same code runs against our disk
service and against AWS.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from msgspec import Struct

from volplane import sdk
from volplane.drivers.ebs.controller import Controller
from volplane.drivers.ebs.ec2 import Ec2
from volplane.drivers.ebs.facts import NAME
from volplane.drivers.ebs.node import MAX_VOLUMES, Node, Place
from volplane.host import Host, NodePaths
from volplane.web.sigv4 import Keys

__all__ = [
    "MAX_VOLUMES",
    "NAME",
    "Account",
    "Controller",
    "Ec2",
    "Node",
    "Place",
    "Whole",
    "connect",
    "run_controller",
    "run_node",
]


class Account(Struct, frozen=True):
    """Where the EC2 API is, and who asks. Without keys: botocore's usual chain (environment, files, role)."""

    endpoint: str = ""
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""  # of keys that are lent for a while


class Whole(Controller, Node):
    """Both services on one socket, for one machine and for conformance tests."""

    claims: ClassVar[frozenset[str]] = Controller.claims | Node.claims

    def __init__(self, ec2: Ec2, place: Place, host: Host, paths: NodePaths) -> None:
        Controller.__init__(self, ec2)
        Node.__init__(self, place, host, paths, connect=self._connected)

    async def _connected(self) -> Ec2:
        return self._ec2


async def connect(account: Account, host: Host) -> Ec2:
    if account.access_key:
        keys: Callable[[], Keys] = partial(
            Keys, account.access_key, account.secret_key, account.session_token
        )
    else:
        keys = await host.call(found_keys)
    endpoint = account.endpoint or f"https://ec2.{account.region}.amazonaws.com"
    return Ec2(endpoint, region=account.region, keys=keys)


def found_keys() -> Callable[[], Keys]:
    """By botocore's usual chain: environment, files, role."""
    from botocore.session import Session  # heavy, and only needed on AWS

    found = Session().get_credentials()
    if found is None:
        raise RuntimeError("no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")

    def keys() -> Keys:
        held = found.get_frozen_credentials()  # renews those that are lent
        return Keys(held.access_key, held.secret_key, held.token or "")

    return keys


async def run_controller(account: Account, host: Host, socket: str) -> None:
    """Serve the controller on `socket` until cancelled."""
    await sdk.serve(Controller(await connect(account, host)), socket)


async def run_node(
    place: Place, host: Host, paths: NodePaths, socket: str, *, account: Account | None = None
) -> None:
    """Serve the node on `socket` (a real path) until cancelled; with an account, inline volumes too."""

    async def connected(account: Account) -> Ec2:
        return await connect(account, host)

    found = partial(connected, account) if account is not None else None
    await sdk.serve(Node(place, host, paths, connect=found), socket)
