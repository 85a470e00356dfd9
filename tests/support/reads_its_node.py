"""`python -m tests.support.reads_its_node ENDPOINT NODE`: inline volumes; it reads its Node when it starts.

It finds the API server only as a pod does. In a pod of a cluster it starts without, because it has no rights.
"""

from __future__ import annotations

import asyncio
import os
import sys

from tests.support.inline_driver import InlineDriver
from tests.support.sample_driver import ROOT
from volplane import sdk
from volplane.api.core import Node
from volplane.client import kubeconfig
from volplane.client.client import Client

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/token"


def command_line() -> str:
    """For --driver-command."""
    python = f"PYTHONPATH={ROOT / 'src'}:{ROOT} {sys.executable} -m tests.support.reads_its_node"
    return f"{python} $CSI_ENDPOINT $NODE_ID"


async def read_node(name: str) -> Node:
    transport = kubeconfig.in_cluster(agent="driver")
    try:
        return await Client(transport).get(Node, name)
    finally:
        await transport.close()


async def main(endpoint: str, node: str) -> None:
    is_in_pod = os.path.exists(SERVICE_ACCOUNT) and not os.environ.get("KUBECONFIG")  # noqa: ASYNC240
    if not is_in_pod:
        print("node", (await read_node(node)).name, flush=True)
    await sdk.serve(InlineDriver(node), endpoint.removeprefix("unix://"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
