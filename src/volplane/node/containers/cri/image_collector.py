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
from volplane.node.containers.cri.client import CHECK_TIMEOUT, CriClient, CriError, NotFoundInRuntime
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
        containers = await self._cri.list_containers({})
        in_use = await self._observe(containers)
        capacity, available = await self._measure()
        needed = bytes_to_free(capacity, available, high=self._high, low=self._low)
        if needed:  # asked for only then, because it takes a call for each container
            in_use |= await self._find_mounted_images(containers)
        removed, freed = [], 0
        chosen = choose_images(
            self._known.values(), in_use, needed=needed, now=clock.now(), min_age=self._min_age
        )
        for image in list(chosen):
            await self._cri.call("RemoveImage", v1.RemoveImageRequest(image=v1.ImageSpec(image=image.id)))
            await self._pulled.discard(image.id)
            self._known.pop(image.id, None)
            log.info("removed the unused image %s: %d bytes", image.id, image.size)
            removed.append(image.id)
            freed += image.size
        if freed < needed:
            self._report(
                "FreeDiskSpaceFailed",
                f"Failed to garbage collect required amount of images. Attempted to free {needed} bytes, but "
                f"only found {freed} bytes eligible to free.",
            )
        return removed

    async def _find_mounted_images(self, containers: Iterable[v1.Container]) -> set[str]:
        """The images of image volumes."""
        found = set()
        for container in containers:
            with suppress(NotFoundInRuntime):
                reply = await self._cri.container_status(container.id)
                found |= {mount.image.image for mount in reply.status.mounts if mount.image.image}
        return found

    async def _observe(self, containers: Iterable[v1.Container]) -> set[str]:
        """Note which images exist and which are in use, by any container of the runtime."""
        in_use = {name for c in containers for name in (c.image_ref, c.image_id, c.image.image) if name}
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
