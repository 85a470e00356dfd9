"""image: the files of an OCI image. A container runtime pulls and mounts it when a container is created."""

from __future__ import annotations

from volplane.api.core import PersistentVolume, Volume
from volplane.volumes.base import PodVolumeRef, PodVolumeSpec, VolumeOperationError, VolumePlugin


class ImagePlugin(VolumePlugin):
    """Nothing is mounted here, so that nothing is left to unmount, and nothing to find after a restart."""

    name = "kubernetes.io/image"

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return source.image is not None

    def is_readonly(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return True

    def path(self, spec: PodVolumeSpec) -> str:
        return ""

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        if self.context.has_container_runtime:
            return
        image = spec.source.image
        assert image is not None
        raise VolumeOperationError(
            f'image "{image.reference}" cannot be mounted: image volumes need a container runtime that pulls '
            "images, and this node runs containers as processes without one"
        )

    async def unpublish(self, ref: PodVolumeRef) -> None:
        """Nothing was mounted."""
