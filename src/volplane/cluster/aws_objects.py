"""The Secret and the ConfigMap in which AWS's own EBS driver looks for its keys and its endpoint.

Its manifests and its chart refer to both, as optional. So it uses the disk service of this cluster as soon as
it is deployed, without any change to them.
"""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress

from volplane.api.core import ConfigMap, Secret
from volplane.api.errors import Conflict
from volplane.client.client import Client
from volplane.cluster.data_directory import REGION, SavedCluster

NAMESPACE = "kube-system"
SECRET, CONFIG_MAP = "aws-secret", "aws-meta"


def disk_service_url(memory: SavedCluster) -> str:
    return f"http://127.0.0.1:{memory.cloud_port}"


def cloud_variables(memory: SavedCluster) -> dict[str, str]:
    """The variables by which SDKs of AWS find the disk service."""
    return {
        "AWS_ENDPOINT_URL": disk_service_url(memory),
        "AWS_ACCESS_KEY_ID": memory.access_key,
        "AWS_SECRET_ACCESS_KEY": memory.secret_key,
        "AWS_REGION": REGION,
    }


async def apply_aws_objects(client: Client, memory: SavedCluster) -> None:
    """Create both, or update them after a port has changed. What a user has changed stays as it is."""
    keys = {"key_id": memory.access_key, "access_key": memory.secret_key}
    data = {name: b64encode(value.encode()).decode() for name, value in keys.items()}
    with suppress(Conflict):
        await client.patch(Secret, SECRET, NAMESPACE, apply=_manifest("Secret", SECRET, data))
    endpoint = {"endpoint": disk_service_url(memory)}
    with suppress(Conflict):
        manifest = _manifest("ConfigMap", CONFIG_MAP, endpoint)
        await client.patch(ConfigMap, CONFIG_MAP, NAMESPACE, apply=manifest)


def _manifest(kind: str, name: str, data: dict[str, str]) -> dict[str, object]:
    meta = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": kind, "metadata": meta, "data": data}
