"""downwardAPI: what the pod is told about itself, as files. Labels and annotations may change under it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from volplane.api.core import DownwardAPIVolumeFile, PersistentVolume, Pod, Volume
from volplane.volumes import fields
from volplane.volumes.base import Spec, VolumeFailure
from volplane.volumes.content import DEFAULT_MODE, Content
from volplane.volumes.writer import File


class Downward(Content):
    name = "kubernetes.io/downward-api"

    def owns(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return source.downward_api is not None

    def is_refreshed(self, spec: Spec) -> bool:
        return True

    async def files(self, spec: Spec) -> Mapping[str, File]:
        source = spec.source.downward_api
        assert source is not None
        return downward_files(spec.pod, source.items, source.default_mode, self.site.allocatable())


def downward_files(
    pod: Pod, items: Iterable[DownwardAPIVolumeFile], mode: int | None, allocatable: Mapping[str, str]
) -> dict[str, File]:
    common = DEFAULT_MODE if mode is None else mode
    return {
        item.path: File(_text(pod, item, allocatable).encode(), common if item.mode is None else item.mode)
        for item in items
    }


def _text(pod: Pod, item: DownwardAPIVolumeFile, allocatable: Mapping[str, str]) -> str:
    try:
        if item.field_ref is not None:
            return fields.field(pod, item.field_ref.field_path)
        if item.resource_field_ref is not None:
            return fields.resource(pod, item.resource_field_ref, allocatable)
    except fields.UnknownField as error:
        raise VolumeFailure(str(error)) from error
    return ""
