"""secret: the keys of a Secret as files in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from volplane.api.core import KeyToPath, PersistentVolume, Volume
from volplane.api.core import Secret as SecretObject
from volplane.client.client import Client
from volplane.volumes.api_volume import ApiVolumePlugin, select_files
from volplane.volumes.atomic_writer import VolumeFile
from volplane.volumes.base import PodVolumeSpec, ReferencedObject


class SecretPlugin(ApiVolumePlugin):
    name = "kubernetes.io/secret"

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return source.secret is not None

    def referenced_objects(self, spec: PodVolumeSpec) -> Iterable[ReferencedObject]:
        assert spec.source.secret is not None
        yield SecretObject, spec.pod.namespace, spec.source.secret.secret_name

    async def files(self, spec: PodVolumeSpec) -> Mapping[str, VolumeFile]:
        source = spec.source.secret
        assert source is not None
        return await secret_files(
            self.context.client,
            spec.pod.namespace,
            source.secret_name,
            source.items,
            source.default_mode,
            source.optional,
        )


async def secret_files(
    client: Client,
    namespace: str,
    name: str,
    items: Iterable[KeyToPath],
    mode: int | None,
    optional: bool | None,
) -> dict[str, VolumeFile]:
    found = await client.find(SecretObject, name, namespace)
    if found is None:
        if optional:
            return {}
        found = await client.get(SecretObject, name, namespace)  # raises the error for the event
    missing = "references non-existent secret key"
    return select_files(found.data, items, mode, missing=missing, optional=bool(optional))
