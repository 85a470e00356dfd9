"""The EBS driver: a block device per volume, attached to one node at a time, through the EC2 API.

`run_controller` and `run_node` serve a socket until they are cancelled. They work with our disk service and
with AWS.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from msgspec import Struct

from volplane import sdk
from volplane.drivers.ebs.constants import NAME
from volplane.drivers.ebs.controller import EbsController
from volplane.drivers.ebs.ec2 import Ec2
from volplane.drivers.ebs.node import MAX_VOLUMES, EbsNode, EbsNodeConfig
from volplane.host import Host, NodePaths
from volplane.web.sigv4 import AwsKeys, NoAwsKeys

__all__ = [
    "MAX_VOLUMES",
    "NAME",
    "AwsAccount",
    "EbsAllInOneDriver",
    "EbsController",
    "EbsNode",
    "EbsNodeConfig",
    "Ec2",
    "connect_ec2",
    "run_controller",
    "run_node",
]

NO_KEYS = "no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


class AwsAccount(Struct, frozen=True):
    """Endpoint and keys of the EC2 API. Without keys, botocore's usual chain: environment, files, role."""

    endpoint: str = ""
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""  # of temporary keys


class EbsAllInOneDriver(EbsController, EbsNode):
    """Both services on one socket, for a single machine and for conformance tests."""

    extra_capabilities: ClassVar[frozenset[str]] = (
        EbsController.extra_capabilities | EbsNode.extra_capabilities
    )

    def __init__(self, ec2: Ec2, place: EbsNodeConfig, host: Host, paths: NodePaths) -> None:
        EbsController.__init__(self, ec2)
        EbsNode.__init__(self, place, host, paths, connect=self._get_ec2)

    async def _get_ec2(self) -> Ec2:
        return self._ec2


async def connect_ec2(account: AwsAccount, host: Host) -> Ec2:
    if account.access_key:
        keys: Callable[[], AwsKeys] = partial(
            AwsKeys, account.access_key, account.secret_key, account.session_token
        )
    else:
        keys = await host.call(find_keys)
    endpoint = account.endpoint or f"https://ec2.{account.region}.amazonaws.com"
    return Ec2(endpoint, region=account.region, keys=keys)


def find_keys() -> Callable[[], AwsKeys]:
    """The keys that botocore's usual chain finds: environment, files, role. Raises NoAwsKeys."""
    try:
        from botocore.session import Session  # slow to import, large, and only needed on AWS
    except ModuleNotFoundError as error:
        raise NoAwsKeys(f"{NO_KEYS}, or install volplane[aws] to use those of files and roles") from error
    found = Session().get_credentials()
    if found is None:
        raise NoAwsKeys(f"{NO_KEYS}, or give this machine credentials in a file or a role")

    def keys() -> AwsKeys:
        held = found.get_frozen_credentials()  # renews temporary keys
        return AwsKeys(held.access_key, held.secret_key, held.token or "")

    return keys


async def run_controller(account: AwsAccount, host: Host, socket: str) -> None:
    """Serve the controller on `socket` until cancelled."""
    await sdk.serve(EbsController(await connect_ec2(account, host)), socket)


async def run_node(
    place: EbsNodeConfig, host: Host, paths: NodePaths, socket: str, *, account: AwsAccount | None = None
) -> None:
    """Serve the node on `socket` (a real path) until cancelled; with an account also inline volumes."""

    async def connect_account(account: AwsAccount) -> Ec2:
        return await connect_ec2(account, host)

    found = partial(connect_account, account) if account is not None else None
    await sdk.serve(EbsNode(place, host, paths, connect=found), socket)
