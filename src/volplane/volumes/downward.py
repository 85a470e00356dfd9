"""downwardAPI: fields of the pod as files. Labels and annotations may change while the pod runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from volplane.api.core import DownwardAPIVolumeFile, PersistentVolume, Pod, Volume
from volplane.volumes import downward_fields
from volplane.volumes.api_volume import DEFAULT_MODE, ApiVolumePlugin
from volplane.volumes.atomic_writer import VolumeFile
from volplane.volumes.base import PodVolumeSpec, VolumeOperationError


class DownwardApiPlugin(ApiVolumePlugin):
    name = "kubernetes.io/downward-api"

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return source.downward_api is not None

    def requires_remount(self, spec: PodVolumeSpec) -> bool:
        return True

    async def files(self, spec: PodVolumeSpec) -> Mapping[str, VolumeFile]:
        source = spec.source.downward_api
        assert source is not None
        return downward_files(spec.pod, source.items, source.default_mode, self.context.allocatable())


def downward_files(
    pod: Pod, items: Iterable[DownwardAPIVolumeFile], mode: int | None, allocatable: Mapping[str, str]
) -> dict[str, VolumeFile]:
    common = DEFAULT_MODE if mode is None else mode
    return {
        item.path: VolumeFile(
            _text(pod, item, allocatable).encode(), common if item.mode is None else item.mode
        )
        for item in items
    }


def _text(pod: Pod, item: DownwardAPIVolumeFile, allocatable: Mapping[str, str]) -> str:
    try:
        if item.field_ref is not None:
            return downward_fields.read_field(pod, item.field_ref.field_path)
        if item.resource_field_ref is not None:
            return downward_fields.read_resource(pod, item.resource_field_ref, allocatable)
    except downward_fields.UnknownField as error:
        raise VolumeOperationError(str(error)) from error
    return ""
