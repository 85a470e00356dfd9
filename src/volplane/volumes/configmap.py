"""configMap: the keys of a ConfigMap as files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from volplane.api.core import ConfigMap as ConfigMapObject
from volplane.api.core import KeyToPath, PersistentVolume, Volume
from volplane.client.client import Client
from volplane.volumes.api_volume import ApiVolumePlugin, config_data, select_files
from volplane.volumes.atomic_writer import VolumeFile
from volplane.volumes.base import PodVolumeSpec, ReferencedObject


class ConfigMapPlugin(ApiVolumePlugin):
    name = "kubernetes.io/configmap"
    in_memory = False

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return source.config_map is not None

    def referenced_objects(self, spec: PodVolumeSpec) -> Iterable[ReferencedObject]:
        assert spec.source.config_map is not None
        yield ConfigMapObject, spec.pod.namespace, spec.source.config_map.name

    async def files(self, spec: PodVolumeSpec) -> Mapping[str, VolumeFile]:
        source = spec.source.config_map
        assert source is not None
        return await config_files(
            self.context.client,
            spec.pod.namespace,
            source.name,
            source.items,
            source.default_mode,
            source.optional,
        )


async def config_files(
    client: Client,
    namespace: str,
    name: str,
    items: Iterable[KeyToPath],
    mode: int | None,
    optional: bool | None,
) -> dict[str, VolumeFile]:
    found = await client.find(ConfigMapObject, name, namespace)
    if found is None:
        if optional:
            return {}
        found = await client.get(ConfigMapObject, name, namespace)  # raises the error for the event
    missing = "configmap references non-existent config key"
    return select_files(config_data(found), items, mode, missing=missing, optional=bool(optional))
