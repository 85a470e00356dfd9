"""Remove unused images when the image file system is full, as upstream's kubelet does with its thresholds.

Only images that this node has pulled are removed: the runtime is shared, and an image that was imported by
hand could not be pulled again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress

from msgspec import structs

from volplane.base import clock
from volplane.host import Host
from volplane.node.containers.cri import v1
from volplane.node.containers.cri.client import (
    CHECK_TIMEOUT,
    CriClient,
    CriError,
    NotFoundInRuntime,
    RuntimeUnavailable,
)
from volplane.node.containers.cri.image_plan import StoredImage, bytes_to_free, choose_images
from volplane.node.containers.cri.pulled_images import PulledImages

log = logging.getLogger(__name__)

INTERVAL = 300.0  # seconds, as upstream's kubelet


class ImageCollector:
    def __init__(
        self,
        cri: CriClient,
        host: Host,
        pulled: PulledImages,
        *,
        high: int,
        low: int,
        min_age: float,
        report: Callable[[str, str], None],
    ) -> None:
        """`high`, `low`: percent of use; `report` gets the reason and text of an event of the Node."""
        self._cri, self._host, self._pulled, self._report = cri, host, pulled, report
        self._high, self._low, self._min_age = high, low, min_age
        self._known: dict[str, StoredImage] = {}
        self._mounted: dict[str, frozenset[str]] = {}  # by container: the images of its image volumes

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                await self.collect()
            except (CriError, OSError) as error:
                log.warning("images are not collected: %s", error)
                self._report("ImageGCFailed", str(error))

    async def collect(self) -> list[str]:
        """Remove images if the file system is full. Returns their ids. Raises CriError, OSError."""
        in_use = await self._observe(await self._cri.list_containers({}))
        capacity, available = await self._measure()
        needed = bytes_to_free(capacity, available, high=self._high, low=self._low)
        removed, freed, kept = [], 0, set(in_use)
        while (image := self._choose(kept, needed - freed)) is not None:
            kept.add(image.id)
            if await self._remove(image):
                removed.append(image.id)
                freed += image.size
        if freed < needed:
            self._report(
                "FreeDiskSpaceFailed",
                f"Failed to garbage collect required amount of images. Attempted to free {needed} bytes, but "
                f"only found {freed} bytes eligible to free.",
            )
        return removed

    def _choose(self, kept: set[str], needed: int) -> StoredImage | None:
        """The next image to remove."""
        chosen = choose_images(
            self._known.values(), kept, needed=needed, now=clock.now(), min_age=self._min_age
        )
        return next(chosen, None)

    async def _remove(self, image: StoredImage) -> bool:
        """False if the runtime refused: other images may still be removed. Raises RuntimeUnavailable."""
        try:
            await self._cri.call("RemoveImage", v1.RemoveImageRequest(image=v1.ImageSpec(image=image.id)))
        except RuntimeUnavailable:
            raise
        except CriError as error:
            log.warning("image %s is not removed: %s", image.id, error)
            self._report("ImageGCFailed", f"cannot remove image {image.id}: {error}")
            return False
        await self._pulled.discard(image.id)
        self._known.pop(image.id, None)
        log.info("removed the unused image %s: %d bytes", image.id, image.size)
        return True

    async def _find_mounted_images(self, containers: Iterable[v1.Container]) -> set[str]:
        """The images of image volumes. Each container is asked for once: its mounts never change."""
        known, self._mounted = self._mounted, {}
        for id in (container.id for container in containers):
            with suppress(NotFoundInRuntime):
                self._mounted[id] = known[id] if id in known else await self._read_mounted_images(id)
        return set().union(*self._mounted.values())

    async def _read_mounted_images(self, container: str) -> frozenset[str]:
        reply = await self._cri.container_status(container)
        return frozenset(mount.image.image for mount in reply.status.mounts if mount.image.image)

    async def _observe(self, containers: Iterable[v1.Container]) -> set[str]:
        """Note which images exist and which are in use, by any container of the runtime."""
        in_use = {name for c in containers for name in (c.image_ref, c.image_id, c.image.image) if name}
        in_use |= await self._find_mounted_images(containers)
        reply: v1.ListImagesResponse = await self._cri.call(
            "ListImages", v1.ListImagesRequest(), CHECK_TIMEOUT
        )
        own, now = await self._pulled.load(), clock.now()
        found = {each.id: each for each in reply.images if each.id in own and not each.pinned}
        for gone in self._known.keys() - found.keys():
            del self._known[gone]
        for id, image in found.items():
            known = self._known.setdefault(id, StoredImage(id, image.size, now, now))
            if id in in_use:
                self._known[id] = structs.replace(known, last_used=now)
        return in_use

    async def _measure(self) -> tuple[int, int]:
        """Capacity and available bytes of the file system with the images."""
        reply: v1.ImageFsInfoResponse = await self._cri.call(
            "ImageFsInfo", v1.ImageFsInfoRequest(), CHECK_TIMEOUT
        )
        for usage in reply.image_filesystems:
            found = await self._host.call(os.statvfs, usage.fs_id.mountpoint)
            return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
        return 0, 0
