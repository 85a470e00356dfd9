"""An API server for a driver that runs outside of a cluster: with its Node, and the objects of its manifests.

Drivers read their node's labels, secrets, or resources of their own when they start. The Nodes are objects
for the names with which the driver is started; nothing runs on them. The driver finds the server as in a pod
(variables, and the files of a service account), and by KUBECONFIG.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from volplane.api.errors import APIError
from volplane.api.labels import HOSTNAME_LABEL
from volplane.client import kubeconfig
from volplane.cluster import user_drivers
from volplane.cluster.account_files import read_address, write_account_files
from volplane.cluster.apply import parse_object
from volplane.cluster.errors import CannotStart
from volplane.cluster.external_driver.model import ExternalDriver
from volplane.cluster.sidecar_roles import bind_role
from volplane.cluster.single_process import Cluster, ClusterOptions
from volplane.cluster.user_drivers import UserDrivers

VARIABLE = "KUBECONFIG"
ACCOUNT, NAMESPACE = "driver", "kube-system"
# Words with which the libraries of drivers say that they find no API server.
SIGNS = (
    "KUBERNETES_SERVICE_HOST",
    "KUBECONFIG",
    "kubeconfig",
    "in-cluster",
    "/var/run/secrets/kubernetes.io",
)
ACCOUNT_MANIFESTS = (
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": NAMESPACE}},
    bind_role("test-driver", NAMESPACE, ACCOUNT, "cluster-admin"),
)
CONTROLLERS = ("serviceaccount-controller", "namespace-controller")  # no workload is started here


class BareApiServer:
    """`async with BareApiServer(…) as server`: `environment` and `secrets` are for the driver's processes.

    `secrets` is a directory for /var/run/secrets.
    """

    def __init__(self, external: ExternalDriver, directory: Path, nodes: Sequence[str]) -> None:
        self._external, self._nodes, self._directory = external, nodes, directory
        options = ClusterOptions(data_dir=str(directory), nodes=0, controllers=CONTROLLERS, ui="off")
        self._cluster = Cluster(options, UserDrivers(builtin=False))

    @property
    def environment(self) -> dict[str, str]:
        address = read_address(self._cluster.layout.kubeconfig, ACCOUNT)
        return {VARIABLE: str(self._cluster.layout.kubeconfig), **address.variables}

    @property
    def secrets(self) -> Path:
        return self._directory / "secrets"

    async def __aenter__(self) -> BareApiServer:
        await self._cluster.__aenter__()
        try:
            await self._create_objects()
        except BaseException:
            await self._cluster.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._cluster.__aexit__()

    async def _create_objects(self) -> None:
        """Create a Node for each name, and the objects of the driver. Raises CannotStart."""
        for name in self._nodes:
            meta = {"name": name, "labels": {HOSTNAME_LABEL: name}}
            await self._cluster.client.create(
                parse_object({"apiVersion": "v1", "kind": "Node", "metadata": meta})
            )
        external = self._external
        objects = [*([external.driver] if external.driver else []), *external.secrets, *external.objects]
        manifests = [
            *ACCOUNT_MANIFESTS,
            *map(dict, external.resources),
            *map(user_drivers.to_manifest, objects),
        ]
        transport = kubeconfig.load(self._cluster.layout.kubeconfig, agent="volplane")
        try:
            await user_drivers.apply(transport, manifests)
            ca = read_address(self._cluster.layout.kubeconfig, ACCOUNT).ca
            await write_account_files(transport, self.secrets, NAMESPACE, ACCOUNT, ca)
        except APIError as error:
            raise CannotStart(f"an object of the driver cannot be created: {error}") from error
        finally:
            await transport.close()


def asks_for_api_server(text: str) -> bool:
    """Whether the end of a driver's log names the API server that it did not find."""
    return any(sign in text for sign in SIGNS)
