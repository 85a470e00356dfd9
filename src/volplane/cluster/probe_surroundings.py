"""What a driver finds when it is started once to discover it: an API server and instance metadata.

It has a service account with all rights, as later in its pods, and a Node for the name it is started with.
These objects exist only meanwhile; those of a start that was killed are removed by the next.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from volplane import web
from volplane.api.core import Node, ServiceAccount
from volplane.api.labels import HOSTNAME_LABEL
from volplane.api.rbac import ClusterRoleBinding
from volplane.client import kubeconfig
from volplane.client.client import Client
from volplane.cluster.account_files import read_address, write_account_files
from volplane.cluster.apply import parse_object
from volplane.cluster.data_directory import REGION, DataDirectory
from volplane.cluster.external_driver.discover import PROBE_NODE, ProbeSurroundings
from volplane.cluster.sidecar_roles import bind_role
from volplane.host import Host
from volplane.node.containers.base import Mount
from volplane.node.instance_metadata import VARIABLE, InstanceMetadata
from volplane.node.options import NodeOptions

NAMESPACE, NAME = "kube-system", "volplane-driver-probe"
INSTANCE, ZONE = "i-00000000000000000", f"{REGION}a"
SECRETS = "/var/run/secrets"


@asynccontextmanager
async def prepare_probe(
    client: Client, layout: DataDirectory, host: Host
) -> AsyncIterator[ProbeSurroundings]:
    secrets = Path(await host.call(tempfile.mkdtemp, prefix="vps-"))
    transport = kubeconfig.load(layout.kubeconfig, agent="volplane")
    settings = NodeOptions(
        hostname_override=PROBE_NODE,
        instance_id=INSTANCE,
        instance_type="m5.large",
        zone=ZONE,
        region=REGION,
    )
    metadata = await web.serve(InstanceMetadata(settings, PROBE_NODE).handle)
    try:
        for manifest in _manifests():
            await client.create(parse_object(manifest), exists_ok=True)
        address = read_address(layout.kubeconfig, NAME)
        await write_account_files(transport, secrets, NAMESPACE, NAME, address.ca)
        yield ProbeSurroundings(
            {**address.variables, VARIABLE: f"http://127.0.0.1:{metadata.port}"},
            (Mount(str(secrets), SECRETS, readonly=True),),
        )
    finally:
        await metadata.close(0.0)
        await transport.close()
        await remove_probe(client)
        await host.call(shutil.rmtree, secrets, True)


async def remove_probe(client: Client) -> None:
    await client.delete(Node, PROBE_NODE, missing_ok=True)
    await client.delete(ClusterRoleBinding, NAME, missing_ok=True)
    await client.delete(ServiceAccount, NAME, NAMESPACE, missing_ok=True)


def _manifests() -> list[dict[str, Any]]:
    labels = {
        HOSTNAME_LABEL: PROBE_NODE,
        "node.kubernetes.io/instance-type": "m5.large",
        "topology.kubernetes.io/region": REGION,
        "topology.kubernetes.io/zone": ZONE,
    }
    spec = {"providerID": f"aws:///{ZONE}/{INSTANCE}", "unschedulable": True}
    meta = {"name": NAME, "namespace": NAMESPACE}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        bind_role(NAME, NAMESPACE, NAME, "cluster-admin"),
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": PROBE_NODE, "labels": labels},
            "spec": spec,
        },
    ]
