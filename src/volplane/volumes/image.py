"""image: the files of an OCI image. Only a container runtime can pull one, and this node has none."""

from __future__ import annotations

from volplane.api.core import PersistentVolume, Volume
from volplane.volumes.base import PodVolumeRef, PodVolumeSpec, VolumeOperationError, VolumePlugin


class ImagePlugin(VolumePlugin):
    name = "kubernetes.io/image"

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return source.image is not None

    def is_readonly(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return True

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        image = spec.source.image
        assert image is not None
        raise VolumeOperationError(
            f'image "{image.reference}" cannot be mounted: image volumes need a container runtime that pulls '
            "images, and this node runs containers as processes without one"
        )

    async def unpublish(self, ref: PodVolumeRef) -> None:
        """Nothing was mounted."""
